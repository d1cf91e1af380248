// A training run as `dgc train` leaves it in a folder: what it was asked to do, what came out, and
// the curves in between. Layout in docs/report.md.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "report/curve.h"

namespace dgc::report {

/// Where the time of rank 0 goes, in the order in which reports show it. The parts add up to the
/// whole; what runs beside the computing does not belong to the sum.
inline constexpr std::array kTimeParts = {"compute",  "waiting",    "apply", "data",
                                          "evaluate", "checkpoint", "other"};
inline constexpr std::array kTimeBeside = {"compress", "exchange"};

/// The figures of one mode. NaN where unknown; seconds, bytes and shares between 0 and 1.
struct Result {
  static constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

  double metric = kUnknown;
  double best_metric = kUnknown;
  double loss = kUnknown;  ///< on validation data
  double epochs = kUnknown;
  double steps = kUnknown;
  double seconds = kUnknown;  ///< of training, without evaluation
  double total_seconds = kUnknown;
  double bytes_up_per_step = kUnknown;
  double bytes_down_per_step = kUnknown;
  double message_ratio = kUnknown;  ///< in steady state: after warm-up
  double traffic_ratio = kUnknown;
  double message_ratio_total = kUnknown;  ///< over all steps
  double traffic_ratio_total = kUnknown;
  double steps_at_final_ratio = kUnknown;
  double final_ratio = kUnknown;
  std::map<std::string, double> time;  ///< seconds, see kTimeParts
  std::string parameters_hash;
  bool finished = false;

  /// Share of the training time spent waiting for the network, or NaN.
  double waiting_share() const;
};

struct TensorRow {
  std::string name;
  std::vector<std::int64_t> shape;
  double elements = Result::kUnknown;
  std::string mode;  ///< sparse, dense or frozen
  std::string why;
  double k = Result::kUnknown;
  double bytes = Result::kUnknown;
};

struct Mode {
  std::string name;
  Result result;
  Curve steps;
  Curve evaluations;
  std::vector<TensorRow> tensors;
};

struct Run {
  std::filesystem::path folder;
  std::string name;        ///< of the folder
  nlohmann::json config;   ///< an object, or null when there is none
  nlohmann::json summary;  ///< summary.json as it is, or null
  std::string metric_name = "metric";
  std::string metric_unit;
  bool higher_is_better = true;
  bool finished = false;
  std::vector<Mode> modes;         ///< dense first
  std::vector<std::string> notes;  ///< what is missing or damaged, a sentence each

  const Mode* dense() const;
};

/// Reads what there is in a run's folder. Without summary (a run that was killed, or is running)
/// the results are taken from the curves. Throws Error: io when there is nothing of a run,
/// truncated or bad_state when config.json, summary.json or tensors.json is not what it should be.
Run read_run(const std::filesystem::path& folder);

}  // namespace dgc::report
