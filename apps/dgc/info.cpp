// dgc info: the instruction set in use, and what is compiled in.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/quantity.h"
#include "command.h"
#include "dgc/engines.h"
#include "dgc/target.h"
#include "dgc/version.h"
#include "exchange/link_costs.h"
#include "process/launcher.h"
#include "process/rendezvous.h"
#include "process/tuning.h"
#include "train/run_costs.h"

namespace dgc::app {
namespace {

struct Options {
  bool as_json = false;
  bool group = false;
  int workers = 4;
  std::string link;
};

/// The group that `dgc train` would join here, and what `auto` would choose by in it.
void run_group(const Options& options) {
  if (!options.link.empty()) parse_link("--emulate-link", options.link);
  if (engine_from_environment() == "local") {
    // Training starts its workers here, too.
    std::vector<std::string> words = {"info", "--group"};
    if (options.as_json) words.emplace_back("--json");
    if (!options.link.empty()) words.push_back("--emulate-link=" + options.link);
    process::launch({.workers = options.workers, .arguments = words});
    return;
  }
  auto group = process::join_group("auto", kDefaultTimeout);
  if (!options.link.empty()) {
    group = make_emulated_link(std::move(group), parse_link("--emulate-link", options.link));
  }
  // As large as what is measured for large models.
  const Costs costs = exchange::measure_costs(*group, {.elements = UINT64_MAX});
  if (group->rank() != 0) return;
  if (options.as_json) {
    const nlohmann::json json = {{"engine", group->engine()},
                                 {"workers", group->size()},
                                 {"costs", nlohmann::json(train::to_json(costs))}};
    fmt::print("{}\n", json.dump(2));
    return;
  }
  fmt::print("engine             {}\nworkers            {}\n", group->engine(), group->size());
  if (group->size() == 1) {
    fmt::print(
        "one worker has nothing to exchange: start this as you start training, with mpirun\n"
        "or with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT\n");
    return;
  }
  fmt::print("link               {}\n", link_text(costs.link));
  const auto line = [](const char* name, double seconds) {
    fmt::print("{:18} {}\n", name, duration_text(seconds));
  };
  line("select, element", costs.select);
  line("encode, entry", costs.encode);
  line("add, entry", costs.entry);
  line("place, entry", costs.place);
  line("slice, element", costs.slice);
}

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
  command->footer(
      "Example:\n  dgc info\n  DGC_TARGET=scalar dgc info --json\n"
      "  dgc info --group                 what auto would choose by, with workers started here\n"
      "  mpirun -n 4 dgc info --group");
  auto options = std::make_shared<Options>();
  command->add_flag("--json", options->as_json, "Print one JSON object");
  auto* group = command->add_flag("--group", options->group,
                                  "Join the group that training would, and measure its link");
  command
      ->add_option("--workers", options->workers,
                   "Workers to start for it, where none were started")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024))
      ->needs(group);
  command->add_option("--emulate-link", options->link, "Put such a link before each, as in train")
      ->needs(group);
  command->callback([options] { options->group ? run_group(*options) : run(options->as_json); });
}

}  // namespace dgc::app
