// dgc info: the instruction set in use, and what is compiled in.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "command.h"
#include "dgc/engines.h"
#include "dgc/target.h"
#include "dgc/version.h"
#include "process/rendezvous.h"
#include "process/tuning.h"

namespace dgc::app {
namespace {

void run(bool as_json) {
  const std::string active = active_target();
  nlohmann::json supported = nlohmann::json::array();
  nlohmann::json untested = nlohmann::json::array();
  for (const Target& target : targets()) {
    (target.supported ? supported : untested).push_back(target.name);
  }
  nlohmann::json integrations = nlohmann::json::array();
  if (const std::string version = process::libtorch_version(); !version.empty()) {
    integrations.push_back(fmt::format("libtorch {} (dgc::Sgd, dgc train)", version));
  }
  const nlohmann::json info = {{"version", DGC_VERSION},
                               {"target", active},
                               {"targets", supported},
                               {"targets_untested", untested},
                               {"threads", std::thread::hardware_concurrency()},
                               {"openblas", process::fast_blas_core()},
                               {"engines", engines()},
                               {"integrations", integrations}};
  if (as_json) {
    fmt::print("{}\n", info.dump(2));
    return;
  }
  const auto list = [](const nlohmann::json& names) {
    std::string text;
    for (const auto& name : names) text += (text.empty() ? "" : ", ") + name.get<std::string>();
    return text.empty() ? std::string("none") : text;
  };
  fmt::print("version            {}\n", DGC_VERSION);
  fmt::print("instruction set    {} (DGC_TARGET chooses another of: {})\n", active,
             list(supported));
  fmt::print("not on this CPU    {} (compiled in, untested here)\n", list(untested));
  fmt::print("hardware threads   {}\n", std::thread::hardware_concurrency());
  if (*process::fast_blas_core() != '\0') {
    fmt::print("OpenBLAS           {} (OPENBLAS_CORETYPE chooses another)\n",
               process::fast_blas_core());
  }
  fmt::print("engines            {}\n", list(info["engines"]));
  fmt::print("integrations       {}\n", list(info["integrations"]));
}

}  // namespace

void add_info(CLI::App& app) {
  auto* command =
      app.add_subcommand("info", "Show the instruction set in use and what is built in");
  command->footer("Example:\n  dgc info\n  DGC_TARGET=scalar dgc info --json");
  auto as_json = std::make_shared<bool>(false);
  command->add_flag("--json", *as_json, "Print one JSON object");
  command->callback([as_json] { run(*as_json); });
}

}  // namespace dgc::app
