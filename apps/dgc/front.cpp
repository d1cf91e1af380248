// `dgc`: what needs libtorch starts anew as `dgc-torch`, with the same arguments.
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <system_error>
#include <vector>

#include "bench/torch.h"
#include "dgc/error.h"
#include "process/rendezvous.h"
#include "process/tuning.h"
#include "torch_part.h"
#include "train/measure_compute.h"
#include "train/measure_sizes.h"

namespace dgc::app {
namespace {

namespace fs = std::filesystem;

/// Beside this program, as in a build folder, or where programs go that people do not call.
fs::path torch_program() {
  std::error_code error;
  const fs::path here = fs::read_symlink("/proc/self/exe", error).parent_path();
  for (const char* place : {"dgc-torch", "../libexec/dgc/dgc-torch"}) {
    if (fs::exists(here / place, error)) return here / place;
  }
  return {};
}

std::vector<std::string> own_arguments() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');) words.push_back(word);
  return words;
}

[[noreturn]] void start_anew(const std::string& subject) {
  const fs::path program = torch_program();
  if (program.empty()) {
    throw Error(ErrorCode::engine_unavailable, "dgc", subject, "libtorch is not in this build",
                "install libtorch-dev and build with -DDGC_WITH_TORCH=ON");
  }
  std::vector<std::string> words = own_arguments();
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  process::choose_fast_blas();
  std::fflush(stdout);
  ::execv(program.c_str(), arguments.data());
  throw Error(ErrorCode::io, "dgc", program.string(),
              "cannot be run: " + std::generic_category().message(errno));
}

}  // namespace

int train_as_rank(const TrainJob&, int) { start_anew("train"); }
int train_in_threads(const TrainJob&, int) { start_anew("train"); }
int join_here(const JoinJob&) { start_anew("join"); }
void export_run(const ExportJob&) { start_anew("export"); }
hub::Bytes initial_parameters(const fs::path&) { start_anew("serve --from"); }

}  // namespace dgc::app

nlohmann::json dgc::bench::measure_steps(const TorchOptions&, int) {
  app::start_anew("bench torch");
}

nlohmann::json dgc::bench::measure_steps_as_rank(const TorchOptions&) {
  app::start_anew("bench torch");
}

double dgc::train::measure_compute(const models::Model&, int, int) {
  app::start_anew("plan --measure");
}

dgc::train::ModelSizes dgc::train::measure_sizes(const models::Model&, int,
                                                 const std::function<void()>&) {
  app::start_anew("sizes");
}

std::string dgc::process::libtorch_version() {
  return app::torch_program().empty() ? "" : DGC_LIBTORCH_VERSION;
}

std::unique_ptr<dgc::Group> dgc::process::join_group(const std::string& engine,
                                                     std::chrono::milliseconds timeout) {
  if (meets_at_agent(engine) && !libtorch_version().empty()) app::start_anew("torchrun");
  return make_group(engine, timeout);
}
