#include "train/session.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>

#include "dgc/collectives.h"
#include "dgc/error.h"
#include "dgc/version.h"
#include "train/loop.h"
#include "train/recipe.h"
#include "train/report/html.h"
#include "train/run_folder.h"

namespace dgc::train {
namespace {

using nlohmann::ordered_json;

/// May differ between ranks and change between a run and its continuation: the results do not
/// depend on them (on threads only in rounding).
const std::vector<std::string> kHowItRuns = {"workers", "launch",    "threads", "loaders",
                                             "timeout", "log-every", "keep",    "data",
                                             "train",   "valid",     "test"};

bool how_it_runs(const std::string& name) {
  return std::find(kHowItRuns.begin(), kHowItRuns.end(), name) != kHowItRuns.end();
}

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

/// What rank 0 has, on all ranks.
ordered_json shared(Group& group, const ordered_json& mine) {
  const std::string text = group.rank() == 0 ? mine.dump() : std::string();
  const auto all = all_gather(group, std::as_bytes(std::span(text)));
  const auto& bytes = all.front();
  return ordered_json::parse(
      std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

/// Rank 0: takes possession of the folder, and finds what is done already.
ordered_json begin(const Session& session, int workers) {
  ordered_json results = ordered_json::object();
  if (session.resume) {
    for (const std::string& mode : modes_of(session.settings)) {
      const auto result = read_json(session.folder / mode / kResultFile);
      if (result && result->value("finished", false)) results[mode] = *result;
    }
    const auto before = read_json(session.folder / kSummaryFile);
    return {{"results", results}, {"common", before ? *before : ordered_json::object()}};
  }
  begin_run(session.folder);
  ordered_json config = relevant(session.settings);
  config["workers"] = workers;
  write_json(session.folder / kConfigFile, config);
  return {{"results", results}, {"common", ordered_json::object()}};
}

void compare_settings(Group& group, const Settings& settings) {
  const ordered_json mine = relevant(settings);
  const ordered_json first = shared(group, mine);
  for (const auto& [name, value] : mine.items()) {
    if (how_it_runs(name) || value == first.value(name, ordered_json())) continue;
    throw Error(ErrorCode::configuration_mismatch, "train", fmt::format("rank {}", group.rank()),
                fmt::format("has {} {} where rank 0 has {}", name, value.dump(),
                            first.value(name, ordered_json()).dump()),
                "start all workers with the same settings");
  }
}

ordered_json summary_of(const Session& session, const ordered_json& common,
                        const ordered_json& results, bool finished) {
  const auto now = std::chrono::system_clock::now();
  ordered_json summary = {{"dgc_version", DGC_VERSION},
                          {"recipe", session.settings.recipe},
                          {"seed", session.settings.seed},
                          {"date", fmt::format("{:%FT%TZ}", fmt::gmtime(now))},
                          {"machine",
                           {{"cpu", cpu_name()},
                            {"cores", ::get_nprocs()},
                            {"threads_per_worker", common.value("threads_per_worker", 1)}}}};
  for (const auto& [name, value] : common.items()) {
    if (!summary.contains(name) && name != "threads_per_worker") summary[name] = value;
  }
  summary["finished"] = finished;
  summary["modes"] = results;
  return summary;
}

}  // namespace

nlohmann::json resumed_settings(const std::filesystem::path& folder, const nlohmann::json& given) {
  const auto config = read_json(folder / kConfigFile);
  if (!config) {
    throw Error(ErrorCode::io, "resume", (folder / kConfigFile).string(), "there is no such run",
                "`--resume` takes the folder that an earlier run was written to");
  }
  nlohmann::json settings = nlohmann::json::parse(config->dump());
  for (const auto& [name, value] : given.items()) {
    if (!how_it_runs(name) && settings.value(name, nlohmann::json()) != value) {
      throw Error(ErrorCode::invalid_argument, "resume", "--" + name,
                  "cannot change in the middle of a run",
                  fmt::format("may change: {}", fmt::join(kHowItRuns, ", ")));
    }
    settings[name] = value;
  }
  return settings;
}

SessionOutcome run_session(Group& group, const Session& session, Console& console) {
  const bool first = group.rank() == 0;
  ordered_json results, common;
  try {
    compare_settings(group, session.settings);
    const ordered_json known = shared(group, first ? begin(session, group.size()) : ordered_json());
    results = known.at("results");
    common = known.at("common");
  } catch (const std::exception& error) {
    group.fail(as_error(error));
    throw;
  }
  bool stopped = false;
  for (const std::string& mode : modes_of(session.settings)) {
    if (results.contains(mode)) {
      console.say(fmt::format("[{}] finished before", mode));
      continue;
    }
    Outcome outcome = train(group,
                            {.settings = session.settings,
                             .mode = mode,
                             .folder = session.folder / mode,
                             .resume = session.resume,
                             .stop = session.stop},
                            console);
    results[mode] = outcome.result;
    common = outcome.common;
    stopped = outcome.stopped;
    if (stopped) break;
  }
  SessionOutcome outcome{.stopped = stopped, .summary = {}};
  if (!first) return outcome;
  // In the order that was asked for, also after a continuation.
  ordered_json ordered = ordered_json::object();
  for (const std::string& mode : modes_of(session.settings)) {
    if (results.contains(mode)) ordered[mode] = results[mode];
  }
  outcome.summary = summary_of(session, common, ordered, !stopped);
  write_json(session.folder / kSummaryFile, outcome.summary);
  const Run run = read_run(session.folder);
  write_report(std::span(&run, 1), session.folder / kReportFile);
  return outcome;
}

}  // namespace dgc::train
