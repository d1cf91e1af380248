#include "train/record.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <span>
#include <variant>

namespace dgc::train {
namespace {

using nlohmann::ordered_json;

/// A field of a record: its name in JSON, and its place in the struct. Files have them in the order
/// of these tables.
template <typename Record>
struct Member {
  const char* name;
  std::variant<double Record::*, std::uint64_t Record::*, std::string Record::*, bool Record::*>
      place;
  bool whole = false;  ///< a number without a fraction, written as such
};
template <typename Record>
using Members = std::span<const Member<Record>>;

ordered_json number(double value, bool whole = false) {
  if (!std::isfinite(value)) return nullptr;
  if (whole) return static_cast<std::int64_t>(std::llround(value));
  return value;
}

ordered_json written(double value, bool whole) { return number(value, whole); }
ordered_json written(std::uint64_t value, bool) { return value; }
ordered_json written(const std::string& value, bool) { return value; }
ordered_json written(bool value, bool) { return value; }

void take(const ordered_json& json, double& value) {
  if (json.is_number()) value = json.get<double>();
}
void take(const ordered_json& json, std::uint64_t& value) {
  if (json.is_number_unsigned()) value = json.get<std::uint64_t>();
}
void take(const ordered_json& json, std::string& value) {
  if (json.is_string()) value = json.get<std::string>();
}
void take(const ordered_json& json, bool& value) {
  if (json.is_boolean()) value = json.get<bool>();
}

/// The member of an object, or null.
const ordered_json& found(const ordered_json& object, const char* name) {
  static const ordered_json nothing;
  const auto place = object.find(name);
  return place == object.end() ? nothing : *place;
}

template <typename Record>
void write(ordered_json& json, const Record& record, Members<Record> members) {
  for (const Member<Record>& member : members) {
    std::visit([&](auto at) { json[member.name] = written(record.*at, member.whole); },
               member.place);
  }
}

template <typename Record>
void read(const ordered_json& json, Record& record, Members<Record> members) {
  for (const Member<Record>& member : members) {
    std::visit([&](auto at) { take(found(json, member.name), record.*at); }, member.place);
  }
}

constexpr Member<StepLine> kStep[] = {
    {"step", &StepLine::step, true},
    {"epoch", &StepLine::epoch},
    {"seconds", &StepLine::seconds},
    {"loss", &StepLine::loss},
    {"lr", &StepLine::lr},
    {"ratio", &StepLine::ratio},
    {"achieved_ratio", &StepLine::achieved_ratio},
    {"message_bytes", &StepLine::message_bytes, true},
    {"message_ratio", &StepLine::message_ratio},
    {"traffic_ratio", &StepLine::traffic_ratio},
    {"bytes_up", &StepLine::bytes_up, true},
    {"bytes_down", &StepLine::bytes_down, true},
    {"gradient_norm", &StepLine::gradient_norm},
    {"residual_norm", &StepLine::residual_norm},
    {"threshold", &StepLine::threshold},
    {"clip_factor", &StepLine::clip_factor},
    {"examples_per_second", &StepLine::examples_per_second},
};

constexpr Member<EvaluationLine> kEvaluation[] = {
    {"step", &EvaluationLine::step, true},
    {"epoch", &EvaluationLine::epoch},
    {"seconds", &EvaluationLine::seconds},
    {"bytes_up", &EvaluationLine::bytes_up, true},
    {"bytes_down", &EvaluationLine::bytes_down, true},
    {"loss", &EvaluationLine::loss},
    {"metric", &EvaluationLine::metric},
};

constexpr Member<Times> kTimes[] = {
    {"data", &Times::data},   {"compute", &Times::compute},   {"waiting", &Times::waiting},
    {"apply", &Times::apply}, {"evaluate", &Times::evaluate}, {"checkpoint", &Times::checkpoint},
    {"other", &Times::other}, {"compress", &Times::compress}, {"exchange", &Times::exchange},
};
constexpr Member<Sent> kSent[] = {
    {"steps", &Sent::steps},
    {"message_bytes", &Sent::message_bytes},
    {"bytes_up", &Sent::bytes_up},
    {"bytes_down", &Sent::bytes_down},
    {"dense_bytes", &Sent::dense_bytes},
    {"ring_bytes", &Sent::ring_bytes},
};

constexpr Members<Times> kTimesOfStep = Members<Times>(kTimes).first(4);

constexpr Member<Result> kScores[] = {
    {"metric_of", &Result::metric_of},
    {"validation_metric", &Result::validation_metric},
    {"best_metric", &Result::best_metric},
    {"loss", &Result::loss},
    {"epochs", &Result::epochs},
    {"steps", &Result::steps, true},
    {"seconds", &Result::seconds},
    {"total_seconds", &Result::total_seconds},
    {"bytes_up_per_step", &Result::bytes_up_per_step},
    {"bytes_down_per_step", &Result::bytes_down_per_step},
    {"message_bytes_per_step", &Result::message_bytes_per_step},
    {"wire_bytes_total", &Result::wire_bytes_total, true},
    {"message_ratio", &Result::message_ratio},
    {"traffic_ratio", &Result::traffic_ratio},
    {"message_ratio_total", &Result::message_ratio_total},
    {"traffic_ratio_total", &Result::traffic_ratio_total},
    {"final_ratio", &Result::final_ratio},
    {"steps_at_final_ratio", &Result::steps_at_final_ratio, true},
};
constexpr Member<Result> kRest[] = {
    {"data_share", &Result::data_share},
    {"waiting_share", &Result::waiting_share},
    {"skipped_files", &Result::skipped_files, true},
    {"parameters_hash", &Result::parameters_hash},
    {"costs", &Result::costs},
    {"finished", &Result::finished},
};

constexpr Member<RunFacts> kModel[] = {
    {"model", &RunFacts::model},
    {"parameters", &RunFacts::parameters, true},
    {"workers", &RunFacts::workers, true},
    {"engine", &RunFacts::engine},
    {"batch", &RunFacts::batch, true},
    {"metric_name", &RunFacts::metric_name},
    {"metric_unit", &RunFacts::metric_unit},
    {"higher_is_better", &RunFacts::higher_is_better},
    {"steps_per_epoch", &RunFacts::steps_per_epoch, true},
    {"examples_per_step", &RunFacts::examples_per_step, true},
    {"example_name", &RunFacts::example_name},
};
constexpr Member<RunFacts> kRunsOn[] = {{"threads_per_worker", &RunFacts::threads_per_worker, true},
                                        {"libtorch", &RunFacts::libtorch}};

constexpr Member<Summary> kSummary[] = {{"dgc_version", &Summary::dgc_version},
                                        {"recipe", &Summary::recipe},
                                        {"seed", &Summary::seed, true},
                                        {"date", &Summary::date}};
constexpr Member<Summary> kMachine[] = {{"cpu", &Summary::cpu}, {"cores", &Summary::cores, true}};
constexpr Member<Summary> kFinished[] = {{"finished", &Summary::finished}};

constexpr Member<TensorLine> kTensor[] = {{"elements", &TensorLine::elements, true},
                                          {"mode", &TensorLine::mode},
                                          {"why", &TensorLine::why},
                                          {"k", &TensorLine::k, true},
                                          {"bytes", &TensorLine::bytes, true}};

using Metrics = std::vector<std::pair<std::string, double>>;

ordered_json metrics_json(const Metrics& metrics) {
  ordered_json json = ordered_json::object();
  for (const auto& [name, value] : metrics) json[name] = number(value);
  return json;
}

Metrics metrics_from(const ordered_json& json) {
  Metrics metrics;
  if (!json.is_object()) return metrics;
  for (const auto& [name, value] : json.items()) {
    metrics.emplace_back(name, value.is_number() ? value.get<double>() : kUnknown);
  }
  return metrics;
}

ordered_json times_json(const Times& times, Members<Times> members) {
  ordered_json json;
  write(json, times, members);
  return json;
}

ordered_json facts_json(const RunFacts& facts) {
  ordered_json json;
  write(json, facts, Members<RunFacts>(kModel));
  write(json, facts, Members<RunFacts>(kRunsOn));
  return json;
}

RunFacts facts_from(const ordered_json& json) {
  RunFacts facts;
  read(json, facts, Members<RunFacts>(kModel));
  read(json, facts, Members<RunFacts>(kRunsOn));
  return facts;
}

}  // namespace

ordered_json to_json(const Totals& totals) {
  ordered_json all, steady;
  write(all, totals.all, Members<Sent>(kSent));
  write(steady, totals.steady, Members<Sent>(kSent));
  return {{"times", times_json(totals.times, kTimes)}, {"all", all}, {"steady", steady}};
}

Totals totals_from(const ordered_json& json) {
  Totals totals;
  read(json.at("times"), totals.times, Members<Times>(kTimes));
  read(json.at("all"), totals.all, Members<Sent>(kSent));
  read(json.at("steady"), totals.steady, Members<Sent>(kSent));
  return totals;
}

ordered_json to_json(const StepLine& line) {
  ordered_json json = {{"type", "step"}};
  write(json, line, Members<StepLine>(kStep));
  json["time"] = times_json(line.time, kTimesOfStep);
  return json;
}

std::optional<StepLine> step_line(const ordered_json& json) {
  if (found(json, "type") != "step") return {};
  StepLine line;
  read(json, line, Members<StepLine>(kStep));
  if (const auto& time = found(json, "time"); time.is_object()) read(time, line.time, kTimesOfStep);
  return line;
}

ordered_json to_json(const EvaluationLine& line) {
  ordered_json json = {{"type", "evaluation"}};
  write(json, line, Members<EvaluationLine>(kEvaluation));
  json["metrics"] = metrics_json(line.metrics);
  return json;
}

std::optional<EvaluationLine> evaluation_line(const ordered_json& json) {
  if (found(json, "type") != "evaluation") return {};
  EvaluationLine line;
  read(json, line, Members<EvaluationLine>(kEvaluation));
  line.metrics = metrics_from(found(json, "metrics"));
  return line;
}

ordered_json to_json(const TensorLine& tensor) {
  ordered_json json = {{"name", tensor.name}, {"shape", tensor.shape}};
  write(json, tensor, Members<TensorLine>(kTensor));
  return json;
}

TensorLine tensor_line(const ordered_json& json) {
  TensorLine tensor;
  take(found(json, "name"), tensor.name);
  read(json, tensor, Members<TensorLine>(kTensor));
  for (const ordered_json& size : found(json, "shape")) {
    if (size.is_number_integer()) tensor.shape.push_back(size.get<std::int64_t>());
  }
  return tensor;
}

void Result::set_totals(const Totals& totals) {
  const Sent& steady = totals.steady.steps > 0 ? totals.steady : totals.all;
  const auto per_step = [&](std::uint64_t bytes) {
    return static_cast<double>(bytes) /
           static_cast<double>(std::max<std::uint64_t>(1, steady.steps));
  };
  const auto ratio = [](double dense, std::uint64_t bytes) {
    return bytes > 0 ? dense / static_cast<double>(bytes) : kUnknown;
  };
  bytes_up_per_step = per_step(steady.bytes_up);
  bytes_down_per_step = per_step(steady.bytes_down);
  message_bytes_per_step = per_step(steady.message_bytes);
  wire_bytes_total = static_cast<double>(totals.all.bytes_up);
  message_ratio = ratio(steady.dense_bytes, steady.message_bytes);
  traffic_ratio = ratio(steady.ring_bytes, steady.bytes_down);
  message_ratio_total = ratio(totals.all.dense_bytes, totals.all.message_bytes);
  traffic_ratio_total = ratio(totals.all.ring_bytes, totals.all.bytes_down);
  steps_at_final_ratio = static_cast<double>(totals.steady.steps);
  time = totals.times;
  seconds = totals.times.training();
  total_seconds = totals.times.total();
  data_share = totals.times.data / std::max(1e-9, seconds);
  waiting_share = totals.times.waiting / std::max(1e-9, seconds);
}

ordered_json to_json(const Result& result) {
  ordered_json json = {{"metric", number(result.metric)},
                       {"metrics", metrics_json(result.metrics)}};
  write(json, result, Members<Result>(kScores));
  json["time"] = result.time ? times_json(*result.time, kTimes) : ordered_json();
  write(json, result, Members<Result>(kRest));
  return json;
}

Result result_from(const ordered_json& json) {
  Result result;
  result.finished = true;  // where a file says nothing else
  take(found(json, "metric"), result.metric);
  result.metrics = metrics_from(found(json, "metrics"));
  read(json, result, Members<Result>(kScores));
  read(json, result, Members<Result>(kRest));
  if (const auto& time = found(json, "time"); time.is_object()) {
    result.time.emplace();
    read(time, *result.time, Members<Times>(kTimes));
    if (std::isnan(result.waiting_share) && time.contains("waiting") && result.seconds > 0.0) {
      result.waiting_share = result.time->waiting / result.seconds;
    }
  }
  // Until 0.1 the same figure had two names.
  if (std::isnan(result.bytes_up_per_step)) {
    take(found(json, "wire_bytes_per_step"), result.bytes_up_per_step);
  }
  return result;
}

ordered_json to_json(const Summary& summary) {
  ordered_json json, machine;
  write(json, summary, Members<Summary>(kSummary));
  write(machine, summary, Members<Summary>(kMachine));
  write(machine, summary.facts, Members<RunFacts>(kRunsOn));
  json["machine"] = machine;
  write(json, summary.facts, Members<RunFacts>(kModel));
  write(json, summary, Members<Summary>(kFinished));
  json["modes"] = ordered_json::object();
  for (const auto& [name, result] : summary.modes) json["modes"][name] = to_json(result);
  return json;
}

Summary summary_from(const ordered_json& json) {
  Summary summary;
  read(json, summary, Members<Summary>(kSummary));
  read(json, summary.facts, Members<RunFacts>(kModel));
  read(json, summary, Members<Summary>(kFinished));
  if (const auto& machine = found(json, "machine"); machine.is_object()) {
    read(machine, summary, Members<Summary>(kMachine));
    read(machine, summary.facts, Members<RunFacts>(kRunsOn));
  }
  if (const auto& modes = found(json, "modes"); modes.is_object()) {
    for (const auto& [name, result] : modes.items()) {
      if (result.is_object()) summary.modes.emplace_back(name, result_from(result));
    }
  }
  return summary;
}

ordered_json to_json(const ModeResult& mode) {
  return {{"result", to_json(mode.result)}, {"common", facts_json(mode.facts)}};
}

std::optional<ModeResult> mode_result(const ordered_json& json) {
  const auto& result = found(json, "result");
  if (!result.is_object()) return {};
  const auto& facts = found(json, "common");
  return ModeResult{result_from(result), facts.is_object() ? facts_from(facts) : RunFacts{}};
}

}  // namespace dgc::train
