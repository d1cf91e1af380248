// metrics.jsonl: a line for each logged step and each evaluation, as a run writes it and as the
// report reads it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <vector>

#include "train/record.h"

namespace dgc::train {

class MetricsLog {
 public:
  /// Lines after `step` are dropped: they are of a run that did not get to its next checkpoint, and
  /// will be written again. Throws Error(io).
  MetricsLog(const std::filesystem::path& file, std::uint64_t step);
  /// Throws Error(io), when the disk is full for example.
  void write(const StepLine& line);
  void write(const EvaluationLine& line);

 private:
  void write(const nlohmann::ordered_json& line);
  std::filesystem::path file_;
  std::ofstream stream_;
};

/// What a metrics.jsonl holds, and how many of its lines could not be read.
struct Metrics {
  std::vector<StepLine> steps;
  std::vector<EvaluationLine> evaluations;
  std::size_t bad_lines = 0;  ///< not counting a last line without line end
  std::size_t first_bad = 0;  ///< its number, from 1
  bool cut_off = false;       ///< the last line is not whole: the run was killed, or is running
};

/// Where a step is not above the one before, the run was resumed from a checkpoint: the lines from
/// that step on are replaced. Throws Error(io) when the file cannot be read; lines that are no JSON
/// objects are only counted.
Metrics read_metrics(const std::filesystem::path& file);

}  // namespace dgc::train
