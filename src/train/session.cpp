#include "train/session.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "dgc/error.h"
#include "dgc/version.h"
#include "train/loop.h"
#include "train/recipe.h"
#include "train/resume.h"
#include "train/run_folder.h"
#include "train/together.h"

namespace dgc::train {
namespace {

using nlohmann::ordered_json;

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

/// What rank 0 has, on all ranks.
ordered_json shared(Group& group, const ordered_json& mine) {
  const auto text = [&] {
    return mine.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
  };
  return ordered_json::parse(gathered(group, group.rank() == 0 ? text() : std::string()).front());
}

/// Rank 0: writes what the run is, or finds what is done already.
ordered_json begin(const Session& session, int workers) {
  ordered_json results = ordered_json::object();
  ordered_json common = ordered_json::object();
  if (session.resume) {
    for (const std::string& mode : modes_of(session.settings)) {
      const auto result = read_json(session.folder / mode / kResultFile);
      if (!result || !result->at("result").value("finished", false)) continue;
      results[mode] = result->at("result");
      common = result->at("common");
    }
    return {{"results", results}, {"common", common}};
  }
  ordered_json config = relevant(session.settings);
  config["workers"] = workers;
  write_json(session.folder / kConfigFile, config);
  return {{"results", results}, {"common", common}};
}

void compare_settings(Group& group, const Session& session) {
  ordered_json mine = relevant(session.settings);
  mine["resume"] = session.resume;
  const ordered_json first = shared(group, mine);
  for (const auto& [name, value] : mine.items()) {
    if (differs_between_ranks(name) || value == first.value(name, ordered_json())) continue;
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

SessionOutcome run_session(Group& group, const Session& session, Console& console) {
  const bool first = group.rank() == 0;
  ordered_json results, common;
  std::optional<RunLock> lock;
  try {
    compare_settings(group, session);
    if (first && !session.resume) begin_run(session.folder);
    if (first) lock.emplace(session.folder);
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
  return outcome;
}

}  // namespace dgc::train
