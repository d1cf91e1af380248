// Where a run is when it saves a checkpoint, beside what the optimizer keeps: the text that goes
// into the checkpoint's user data, and how it comes back.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "train/lr_schedule.h"
#include "train/record.h"

namespace dgc::train {

struct ResumePoint {
  std::uint64_t epoch = 0;     ///< that the next step belongs to
  std::int64_t position = 0;   ///< in the data of that epoch
  std::int64_t positions = 0;  ///< of a whole epoch; text has others with other workers
  std::uint64_t done = 0;      ///< steps so far
  std::uint64_t steps = 0;     ///< of the whole run
  std::set<std::string> skipped_files;
  LrSchedule::State lr;
  Totals totals;
  std::optional<double> best_metric;
  std::optional<Scores> validation;  ///< of the last evaluation

  std::string text() const;
  /// Throws Error(bad_state) for a text that no run has written.
  static ResumePoint from(const std::string& text);
};

}  // namespace dgc::train
