#include "report/read_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "dgc/error.h"
#include "report/curve.h"
#include "train/metrics_log.h"
#include "train/run_folder.h"

namespace dgc::report {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;
using train::EvaluationLine;
using train::Result;
using train::StepLine;

constexpr const char* kOperation = "read run";

/// Null when there is no such file.
ordered_json read_file(const fs::path& path, ordered_json::value_t type) {
  const auto value = train::read_json(path);
  if (!value) return nullptr;
  if (value->type() != type) {
    throw Error(ErrorCode::bad_state, kOperation, path.string(),
                fmt::format("holds {} where {} is expected", value->type_name(),
                            type == ordered_json::value_t::array ? "an array" : "an object"));
  }
  return *value;
}

/// What the curves tell of a mode that has no result yet.
Result result_so_far(const Mode& mode, bool higher_is_better) {
  Result result;
  result.metric = last(mode.evaluations, &EvaluationLine::metric);
  result.loss = last(mode.evaluations, &EvaluationLine::loss);
  for (const EvaluationLine& line : mode.evaluations) {
    if (std::isnan(line.metric)) continue;
    const bool better =
        higher_is_better ? line.metric > result.best_metric : line.metric < result.best_metric;
    if (better || std::isnan(result.best_metric)) result.best_metric = line.metric;
  }
  result.epochs = last(mode.steps, &StepLine::epoch);
  result.steps = last(mode.steps, &StepLine::step);
  result.seconds = last(mode.steps, &StepLine::seconds);
  result.message_ratio = last(mode.steps, &StepLine::message_ratio);
  result.traffic_ratio = last(mode.steps, &StepLine::traffic_ratio);
  result.final_ratio = last(mode.steps, &StepLine::ratio);
  // Bytes are cumulative: the last two logged steps tell what one costs now.
  if (const std::size_t n = mode.steps.size(); n >= 2) {
    const StepLine& before = mode.steps[n - 2];
    const StepLine& now = mode.steps[n - 1];
    result.bytes_up_per_step = (now.bytes_up - before.bytes_up) / (now.step - before.step);
    result.bytes_down_per_step = (now.bytes_down - before.bytes_down) / (now.step - before.step);
  }
  return result;
}

std::vector<train::TensorLine> read_tensors(const fs::path& path) {
  std::vector<train::TensorLine> tensors;
  const ordered_json entries = read_file(path, ordered_json::value_t::array);
  for (const ordered_json& entry : entries) {
    if (!entry.is_object()) {
      throw Error(ErrorCode::bad_state, kOperation, path.string(),
                  fmt::format("entry {} is not an object", tensors.size()));
    }
    tensors.push_back(train::tensor_line(entry));
  }
  return tensors;
}

Mode& mode_of(Run& run, const std::string& name) {
  const auto found = std::find_if(run.modes.begin(), run.modes.end(),
                                  [&name = name](const Mode& mode) { return mode.name == name; });
  if (found != run.modes.end()) return *found;
  return run.modes.emplace_back(Mode{.name = name});
}

void read_mode(const fs::path& folder, Mode& mode, std::vector<std::string>& notes) {
  const fs::path curves = folder / train::kMetricsFile;
  if (fs::exists(curves)) {
    train::Metrics metrics = train::read_metrics(curves);
    mode.steps = std::move(metrics.steps);
    mode.evaluations = std::move(metrics.evaluations);
    if (metrics.bad_lines > 0) {
      notes.push_back(fmt::format(
          "{}/metrics.jsonl: {} damaged line{} left out, the first is line {}", mode.name,
          metrics.bad_lines, metrics.bad_lines == 1 ? "" : "s", metrics.first_bad));
    }
  } else {
    notes.push_back(fmt::format("{}/metrics.jsonl is missing: no curves", mode.name));
  }
  const fs::path tensors = folder / train::kTensorsFile;
  if (fs::exists(tensors)) {
    mode.tensors = read_tensors(tensors);
  } else {
    notes.push_back(fmt::format("{}/tensors.json is missing: no tensors", mode.name));
  }
}

void read_modes(Run& run) {
  for (const auto& [name, result] : run.summary.modes) mode_of(run, name).result = result;
  const std::size_t summarized = run.modes.size();
  // Only folders that are there are read: a name in summary.json is no path.
  std::map<std::string, fs::path> folders;
  for (const auto& entry : fs::directory_iterator(run.folder)) {
    if (entry.is_directory() && (fs::exists(entry.path() / train::kMetricsFile) ||
                                 fs::exists(entry.path() / train::kTensorsFile))) {
      folders[entry.path().filename().string()] = entry.path();
    }
  }
  for (std::size_t i = 0; i < summarized; ++i) {
    const std::string& name = run.modes[i].name;
    if (!folders.contains(name)) {
      run.notes.push_back(fmt::format("{}: its folder is missing: no curves and tensors", name));
    }
  }
  for (const auto& [name, folder] : folders) {
    bool has_result = std::any_of(run.modes.begin(), run.modes.end(),
                                  [&name = name](const Mode& mode) { return mode.name == name; });
    Mode& mode = mode_of(run, name);
    read_mode(folder, mode, run.notes);
    // Newer than the summary, where a run was stopped and went on.
    const ordered_json file = read_file(folder / train::kResultFile, ordered_json::value_t::object);
    if (const auto own = train::mode_result(file)) {
      mode.result = own->result;
      if (run.summary_file.is_null()) run.summary.facts = own->facts;
      has_result = true;
    }
    const bool went_on =
        !mode.result.finished && last(mode.steps, &StepLine::step) > mode.result.steps;
    if (!has_result || went_on) {
      mode.result = result_so_far(mode, run.summary.facts.higher_is_better);
    }
  }
  std::stable_sort(run.modes.begin(), run.modes.end(), [](const Mode& a, const Mode& b) {
    return (a.name == "dense") > (b.name == "dense");
  });
}

}  // namespace

const Mode* Run::dense() const {
  return !modes.empty() && modes.front().name == "dense" ? &modes.front() : nullptr;
}

Run read_run(const fs::path& folder) {
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored)) {
    throw Error(ErrorCode::io, kOperation, folder.string(),
                fs::exists(folder, ignored) ? "is not a folder" : "does not exist",
                "give the folder that `dgc train --out` wrote");
  }
  Run run;
  run.folder = folder;
  // "runs/a/" and "." have no last part of their own.
  const fs::path whole = fs::absolute(folder).lexically_normal();
  run.name = (whole.has_filename() ? whole : whole.parent_path()).filename().string();
  const auto object = ordered_json::value_t::object;
  run.config = nlohmann::json::parse(read_file(folder / train::kConfigFile, object).dump());
  run.summary_file = read_file(folder / train::kSummaryFile, object);
  run.summary = train::summary_from(run.summary_file);
  if (run.config.is_null()) run.notes.emplace_back("config.json is missing: no configuration");
  if (run.summary_file.is_null()) {
    run.notes.emplace_back(
        "summary.json is missing: the run is not finished, and its figures are those of the last "
        "logged step");
  } else if (!run.summary.finished) {
    run.notes.emplace_back("the run is not finished");
  }
  read_modes(run);
  if (run.modes.empty() && run.config.is_null() && run.summary_file.is_null()) {
    throw Error(ErrorCode::io, kOperation, folder.string(),
                "holds no run: neither config.json nor summary.json nor MODE/metrics.jsonl",
                "give the folder that `dgc train --out` wrote");
  }
  if (run.modes.empty()) run.notes.emplace_back("no mode has begun to train");
  return run;
}

}  // namespace dgc::report
