// The record of a run: every field of metrics.jsonl, tensors.json, result.json and summary.json.
// The trainer fills these structs in, they write themselves as JSON, and the report reads them
// back. No other file spells the names of the fields.
//
// NaN stands for a number that is not known; JSON has null there, or nothing. Reading never fails:
// what is absent or of another type is not known. So records of other versions can be read.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace dgc::train {

inline constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

/// Where the time of one worker goes, in seconds. compress and exchange run beside compute where
/// overlap is on; the others add up to the whole time.
struct Times {
  double data = 0.0;     ///< waiting for a batch
  double compute = 0.0;  ///< forward and backward
  double waiting = 0.0;  ///< after backward, until the gradients of all workers are there
  double apply = 0.0;    ///< the update of the parameters
  double evaluate = 0.0;
  double checkpoint = 0.0;
  double other = 0.0;
  double compress = 0.0;
  double exchange = 0.0;

  double training() const { return data + compute + waiting + apply + other; }
  double total() const { return training() + evaluate + checkpoint; }
};

struct TimePart {
  const char* name;
  double Times::*member;
};
/// The parts that add up, in the order in which reports show them.
inline constexpr std::array<TimePart, 7> kTimeParts = {{{"compute", &Times::compute},
                                                        {"waiting", &Times::waiting},
                                                        {"apply", &Times::apply},
                                                        {"data", &Times::data},
                                                        {"evaluate", &Times::evaluate},
                                                        {"checkpoint", &Times::checkpoint},
                                                        {"other", &Times::other}}};
/// The work that runs beside them.
inline constexpr std::array<TimePart, 2> kTimeBeside = {
    {{"compress", &Times::compress}, {"exchange", &Times::exchange}}};

/// What one worker sent and received in some of its steps.
struct Sent {
  std::uint64_t steps = 0;
  std::uint64_t message_bytes = 0;
  std::uint64_t bytes_up = 0;
  std::uint64_t bytes_down = 0;
  double dense_bytes = 0.0;  ///< what the messages would have been as fp32, whole
  double ring_bytes = 0.0;   ///< what a dense ring among as many workers would have brought down
};

/// What a run adds up over its steps; part of its checkpoints.
struct Totals {
  Times times;
  Sent all;
  Sent steady;  ///< of the steps at the final ratio
};

/// What came out of an evaluation.
struct Scores {
  double loss = 0.0;
  std::vector<std::pair<std::string, double>> metrics;  ///< the first is the one that counts
};

/// A line of metrics.jsonl about the steps since the last one. Bytes are those since the beginning.
struct StepLine {
  double step = kUnknown, epoch = kUnknown;
  double seconds = kUnknown;  ///< of training, since the beginning
  double loss = kUnknown, lr = kUnknown;
  double ratio = kUnknown, achieved_ratio = kUnknown;
  double message_bytes = kUnknown, message_ratio = kUnknown, traffic_ratio = kUnknown;
  double bytes_up = kUnknown, bytes_down = kUnknown;
  double gradient_norm = kUnknown, residual_norm = kUnknown;
  double threshold = kUnknown, clip_factor = kUnknown;
  double examples_per_second = kUnknown;
  Times time;  ///< since the last line: data, compute, waiting and apply
};

/// A line of metrics.jsonl about an evaluation.
struct EvaluationLine {
  double step = kUnknown, epoch = kUnknown, seconds = kUnknown;
  double bytes_up = kUnknown, bytes_down = kUnknown;
  double loss = kUnknown, metric = kUnknown;
  std::vector<std::pair<std::string, double>> metrics;
};

/// A tensor in tensors.json: how it travels, and why.
struct TensorLine {
  std::string name;
  std::vector<std::int64_t> shape;
  double elements = kUnknown;
  std::string mode;  ///< sparse, dense or frozen
  std::string why;
  double k = kUnknown;
  double bytes = kUnknown;
};

/// The figures of one mode: "result" in result.json, and under the mode's name in summary.json.
/// Seconds, bytes, and shares between 0 and 1. Bytes and times are those of rank 0.
struct Result {
  double metric = kUnknown;  ///< on the test data, or on validation data: metric_of
  std::vector<std::pair<std::string, double>> metrics;
  std::string metric_of;
  double validation_metric = kUnknown, best_metric = kUnknown;
  double loss = kUnknown;
  double epochs = kUnknown, steps = kUnknown;
  double seconds = kUnknown;        ///< of training
  double total_seconds = kUnknown;  ///< with evaluations and checkpoints
  /// Once warmed up: of the steps at the final ratio, or of all where none is.
  double bytes_up_per_step = kUnknown, bytes_down_per_step = kUnknown;
  double message_bytes_per_step = kUnknown;
  double wire_bytes_total = kUnknown;                                     ///< sent in all steps
  double message_ratio = kUnknown, traffic_ratio = kUnknown;              ///< once warmed up
  double message_ratio_total = kUnknown, traffic_ratio_total = kUnknown;  ///< over all steps
  double final_ratio = kUnknown, steps_at_final_ratio = kUnknown;
  std::optional<Times> time;
  double data_share = kUnknown, waiting_share = kUnknown;  ///< of `seconds`
  double skipped_files = kUnknown;
  std::string parameters_hash;
  std::string costs;  ///< what `auto` chose by, as text; empty with other algorithms
  bool finished = false;

  /// The figures that follow from what was added up.
  void set_totals(const Totals& totals);
};

/// What the modes of a run have in common: "common" in result.json, and the head of summary.json.
struct RunFacts {
  std::string model;
  double parameters = kUnknown;
  double workers = kUnknown;
  std::string engine;
  double threads_per_worker = kUnknown;
  std::string libtorch;  ///< its version: results differ between versions in their last digits
  double batch = kUnknown;
  std::string metric_name = "metric", metric_unit;
  bool higher_is_better = true;
  double steps_per_epoch = kUnknown;
  double examples_per_step = kUnknown;  ///< of all workers
  std::string example_name;             ///< what they are: "examples", "tokens"
};

/// summary.json.
struct Summary {
  std::string dgc_version, recipe;
  double seed = kUnknown;
  std::string date;  ///< 2026-11-18T01:21:56Z
  std::string cpu;
  double cores = kUnknown;
  RunFacts facts;
  bool finished = false;
  std::vector<std::pair<std::string, Result>> modes;  ///< in the order that was asked for
};

nlohmann::ordered_json to_json(const Totals& totals);
/// Throws nlohmann::json::exception when a part is absent: a checkpoint has all of them.
Totals totals_from(const nlohmann::ordered_json& json);

nlohmann::ordered_json to_json(const StepLine& line);
nlohmann::ordered_json to_json(const EvaluationLine& line);
/// For objects of that type; nothing for others.
std::optional<StepLine> step_line(const nlohmann::ordered_json& json);
std::optional<EvaluationLine> evaluation_line(const nlohmann::ordered_json& json);

nlohmann::ordered_json to_json(const TensorLine& tensor);
TensorLine tensor_line(const nlohmann::ordered_json& json);

nlohmann::ordered_json to_json(const Result& result);
Result result_from(const nlohmann::ordered_json& json);

nlohmann::ordered_json to_json(const Summary& summary);
Summary summary_from(const nlohmann::ordered_json& json);

/// result.json: the figures of a mode, and what it shares with the others.
struct ModeResult {
  Result result;
  RunFacts facts;
};
nlohmann::ordered_json to_json(const ModeResult& mode);
/// Nothing for an object without results.
std::optional<ModeResult> mode_result(const nlohmann::ordered_json& json);

}  // namespace dgc::train
