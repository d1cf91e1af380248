#include "train/train_run.h"

#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "dgc/error.h"
#include "train/across_ranks.h"
#include "train/changeable.h"
#include "train/relevant.h"
#include "train/run_folder.h"
#include "train/summary.h"
#include "train/trainer.h"

namespace dgc::train {
namespace {

using nlohmann::ordered_json;
using ModeResults = std::map<std::string, ModeResult>;

/// What rank 0 has, on all ranks.
ordered_json shared(Group& group, const ordered_json& mine) {
  const auto text = [&] {
    return mine.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
  };
  return ordered_json::parse(gathered(group, group.rank() == 0 ? text() : std::string()).front());
}

void compare_settings(Group& group, const RunRequest& request) {
  std::string mine = fmt::format("resume {}\n", request.resume);
  const ordered_json settings = relevant(request.settings);
  for (const auto& [name, value] : settings.items()) {
    if (!differs_between_ranks(name)) mine += fmt::format("{} {}\n", name, value.dump());
  }
  require_same(group, mine, "start all workers with the same settings");
}

/// Rank 0: writes down what a new run is.
void write_config(const RunRequest& request, int workers) {
  ordered_json config = relevant(request.settings);
  config["workers"] = workers;
  write_json(request.folder / kConfigFile, config);
}

/// The modes that rank 0 finds finished in the folder, on all ranks. A collective call.
ModeResults finished_modes(Group& group, const RunRequest& request) {
  ordered_json files = ordered_json::object();
  for (const std::string& mode : modes_of(request.settings)) {
    if (!request.resume || group.rank() != 0) continue;
    if (const auto file = read_json(request.folder / mode / kResultFile)) files[mode] = *file;
  }
  ModeResults finished;
  const ordered_json known = shared(group, files);
  for (const auto& [mode, file] : known.items()) {
    const auto figures = mode_result(file);
    if (figures && figures->result.finished) finished.emplace(mode, *figures);
  }
  return finished;
}

Summary summary_of(const RunRequest& request, const ModeResults& results, bool finished) {
  Summary summary = summary_head(request.settings);
  summary.finished = finished;
  // In the order that was asked for, also after a continuation.
  for (const std::string& mode : modes_of(request.settings)) {
    const auto known = results.find(mode);
    if (known == results.end()) continue;
    summary.modes.emplace_back(mode, known->second.result);
    summary.facts = known->second.facts;
  }
  return summary;
}

}  // namespace

TrainedRun train_run(Group& group, const RunRequest& request, Console& console) {
  const bool first = group.rank() == 0;
  ModeResults results;
  std::optional<RunLock> lock;
  try {
    compare_settings(group, request);
    if (first && !request.resume) begin_run(request.folder);
    if (first) lock.emplace(request.folder);
    if (first && !request.resume) write_config(request, group.size());
    results = finished_modes(group, request);
  } catch (const std::exception& error) {
    group.fail(as_error(error));
    throw;
  }
  TrainedRun run;
  for (const std::string& mode : modes_of(request.settings)) {
    if (results.contains(mode)) {
      console.say(fmt::format("[{}] finished before", mode));
      continue;
    }
    const TrainedMode trained = train_mode(group,
                                           {.settings = request.settings,
                                            .mode = mode,
                                            .folder = request.folder / mode,
                                            .resume = request.resume,
                                            .stop = request.stop},
                                           console);
    results.emplace(mode, trained.figures);
    run.stopped = trained.stopped;
    if (run.stopped) break;
  }
  if (!first) return run;
  run.summary = summary_of(request, results, !run.stopped);
  write_json(request.folder / kSummaryFile, to_json(run.summary));
  return run;
}

}  // namespace dgc::train
