// A training run as `dgc train` leaves it in a folder: what it was asked to do, what came out, and
// the curves in between. Layout in docs/report.md; the fields in train/record.h.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "train/record.h"

namespace dgc::report {

using train::kUnknown;

struct Mode {
  std::string name;
  train::Result result;
  std::vector<train::StepLine> steps;
  std::vector<train::EvaluationLine> evaluations;
  std::vector<train::TensorLine> tensors;
};

struct Run {
  std::filesystem::path folder;
  std::string name;                     ///< of the folder
  nlohmann::json config;                ///< an object, or null when there is none
  nlohmann::ordered_json summary_file;  ///< summary.json as it is, or null
  train::Summary summary;               ///< but for its modes, which are below
  std::vector<Mode> modes;              ///< dense first
  std::vector<std::string> notes;       ///< what is missing or damaged, a sentence each

  const Mode* dense() const;
};

/// Reads what there is in a run's folder. Without summary (a run that was killed, or is running)
/// the results are taken from the curves. Throws Error: io when there is nothing of a run,
/// truncated or bad_state when config.json, summary.json or tensors.json is not what it should be.
Run read_run(const std::filesystem::path& folder);

}  // namespace dgc::report
