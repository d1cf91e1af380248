// Builds without libtorch: what needs it says so.
#include "bench.h"
#include "command.h"
#include "dgc/error.h"
#include "plan_measure.h"
#include "rendezvous.h"

namespace dgc::app {
namespace {

[[noreturn]] void refuse(const std::string& operation, const std::string& subject) {
  throw Error(ErrorCode::engine_unavailable, operation, subject, "libtorch is not in this build",
              "install libtorch-dev and build with -DDGC_WITH_TORCH=ON");
}

void add_missing(CLI::App& parent, const std::string& name) {
  auto* command = parent.add_subcommand(name, "Not in this build: it needs libtorch");
  command->footer("Example:\n  cmake -B build -DDGC_WITH_TORCH=ON && cmake --build build");
  command->allow_extras();
  command->callback([name] { refuse("dgc", name); });
}

}  // namespace

void add_train(CLI::App& app) { add_missing(app, "train"); }
void add_sizes(CLI::App& app) { add_missing(app, "sizes"); }
void add_bench_torch(CLI::App& bench) { add_missing(bench, "torch"); }

double measured_compute(const std::string&, int, int) { refuse("plan", "--measure"); }

bool has_address_rendezvous() noexcept { return false; }
std::unique_ptr<Group> join_group(const std::string& engine, std::chrono::milliseconds timeout) {
  return make_group(engine, timeout);
}

}  // namespace dgc::app
