#include "report/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/file.h"
#include "dgc/error.h"
#include "train/run_folder.h"

namespace dgc::report {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kOperation = "read run";

/// Null when there is no such file.
json read_json(const fs::path& path, json::value_t type) {
  if (!fs::exists(path)) return nullptr;
  const MappedFile file(path);
  const auto* const begin = reinterpret_cast<const char*>(file.contents().data());
  const std::size_t size = file.contents().size();
  json value;
  try {
    value = json::parse(begin, begin + size);
  } catch (const json::parse_error& error) {
    if (error.byte > size) {
      throw Error(ErrorCode::truncated, kOperation, path.string(), "ends early",
                  "remove it to report what else there is");
    }
    throw Error(ErrorCode::bad_state, kOperation, path.string(),
                fmt::format("is not JSON at byte {}", error.byte));
  } catch (const json::exception& error) {  // a number that no double holds
    throw Error(ErrorCode::bad_state, kOperation, path.string(), error.what());
  }
  if (value.type() != type) {
    throw Error(ErrorCode::bad_state, kOperation, path.string(),
                fmt::format("holds {} where {} is expected", value.type_name(),
                            type == json::value_t::array ? "an array" : "an object"));
  }
  return value;
}

double number(const json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_number() ? found->get<double>() : Result::kUnknown;
}

std::string text(const json& object, const char* name, std::string otherwise = {}) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : otherwise;
}

bool flag(const json& object, const char* name, bool otherwise) {
  const auto found = object.find(name);
  return found != object.end() && found->is_boolean() ? found->get<bool>() : otherwise;
}

Result result_of(const json& object) {
  Result result;
  const auto read = [&](const char* name, double& value) { value = number(object, name); };
  read("metric", result.metric);
  read("best_metric", result.best_metric);
  read("loss", result.loss);
  read("epochs", result.epochs);
  read("steps", result.steps);
  read("seconds", result.seconds);
  read("total_seconds", result.total_seconds);
  read("bytes_up_per_step", result.bytes_up_per_step);
  read("bytes_down_per_step", result.bytes_down_per_step);
  read("message_ratio", result.message_ratio);
  read("traffic_ratio", result.traffic_ratio);
  read("message_ratio_total", result.message_ratio_total);
  read("traffic_ratio_total", result.traffic_ratio_total);
  read("steps_at_final_ratio", result.steps_at_final_ratio);
  read("final_ratio", result.final_ratio);
  if (const auto time = object.find("time"); time != object.end() && time->is_object()) {
    for (const auto& [name, seconds] : time->items()) {
      if (seconds.is_number()) result.time[name] = seconds.get<double>();
    }
  }
  result.parameters_hash = text(object, "parameters_hash");
  result.finished = flag(object, "finished", true);
  return result;
}

/// What the curves tell of a mode that has no summary yet.
Result result_so_far(const Mode& mode, bool higher_is_better) {
  Result result;
  result.metric = mode.evaluations.last("metric");
  result.loss = mode.evaluations.last("loss");
  for (const double metric : mode.evaluations.column("metric")) {
    if (std::isnan(metric)) continue;
    const bool better =
        higher_is_better ? metric > result.best_metric : metric < result.best_metric;
    if (better || std::isnan(result.best_metric)) result.best_metric = metric;
  }
  result.epochs = mode.steps.last("epoch");
  result.steps = mode.steps.last("step");
  result.seconds = mode.steps.last("seconds");
  result.message_ratio = mode.steps.last("message_ratio");
  result.traffic_ratio = mode.steps.last("traffic_ratio");
  result.final_ratio = mode.steps.last("ratio");
  // Bytes are cumulative: the last two logged steps tell what one costs now.
  const auto step = mode.steps.column("step");
  const auto per_step = [&](const char* name) {
    const auto bytes = mode.steps.column(name);
    const std::size_t n = bytes.size();
    if (n < 2 || step.size() != n) return Result::kUnknown;
    return (bytes[n - 1] - bytes[n - 2]) / (step[n - 1] - step[n - 2]);
  };
  result.bytes_up_per_step = per_step("bytes_up");
  result.bytes_down_per_step = per_step("bytes_down");
  return result;
}

std::vector<TensorRow> read_tensors(const fs::path& path) {
  std::vector<TensorRow> tensors;
  const json entries = read_json(path, json::value_t::array);
  for (const json& entry : entries) {
    if (!entry.is_object()) {
      throw Error(ErrorCode::bad_state, kOperation, path.string(),
                  fmt::format("entry {} is not an object", tensors.size()));
    }
    TensorRow& tensor = tensors.emplace_back();
    tensor.name = text(entry, "name");
    tensor.elements = number(entry, "elements");
    tensor.mode = text(entry, "mode");
    tensor.why = text(entry, "why");
    tensor.k = number(entry, "k");
    tensor.bytes = number(entry, "bytes");
    const auto shape = entry.find("shape");
    if (shape == entry.end() || !shape->is_array()) continue;
    for (const json& size : *shape) {
      if (size.is_number_integer()) tensor.shape.push_back(size.get<std::int64_t>());
    }
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
    Metrics metrics = read_metrics(curves);
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
  if (const auto modes = run.summary.find("modes"); modes != run.summary.end()) {
    for (const auto& [name, object] : modes->items()) {
      if (object.is_object()) mode_of(run, name).result = result_of(object);
    }
  }
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
    const json own = read_json(folder / train::kResultFile, json::value_t::object);
    if (const auto result = own.find("result"); result != own.end() && result->is_object()) {
      mode.result = result_of(*result);
      has_result = true;
    }
    const bool went_on = !mode.result.finished && mode.steps.last("step") > mode.result.steps;
    if (!has_result || went_on) mode.result = result_so_far(mode, run.higher_is_better);
  }
  std::stable_sort(run.modes.begin(), run.modes.end(), [](const Mode& a, const Mode& b) {
    return (a.name == "dense") > (b.name == "dense");
  });
}

}  // namespace

double Result::waiting_share() const {
  const auto found = time.find("waiting");
  return found == time.end() || !(seconds > 0.0) ? kUnknown : found->second / seconds;
}

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
  run.config = read_json(folder / train::kConfigFile, json::value_t::object);
  run.summary = read_json(folder / train::kSummaryFile, json::value_t::object);
  const json& about = run.summary.is_null() ? json::object() : run.summary;
  run.metric_name = text(about, "metric_name", run.metric_name);
  run.metric_unit = text(about, "metric_unit");
  run.higher_is_better = flag(about, "higher_is_better", true);
  run.finished = flag(about, "finished", false);
  if (run.config.is_null()) run.notes.emplace_back("config.json is missing: no configuration");
  if (run.summary.is_null()) {
    run.notes.emplace_back(
        "summary.json is missing: the run is not finished, and its figures are those of the last "
        "logged step");
  } else if (!run.finished) {
    run.notes.emplace_back("the run is not finished");
  }
  read_modes(run);
  if (run.modes.empty() && run.config.is_null() && run.summary.is_null()) {
    throw Error(ErrorCode::io, kOperation, folder.string(),
                "holds no run: neither config.json nor summary.json nor MODE/metrics.jsonl",
                "give the folder that `dgc train --out` wrote");
  }
  if (run.modes.empty()) run.notes.emplace_back("no mode has begun to train");
  return run;
}

}  // namespace dgc::report
