// --ratio auto: sends more than the run needs where the network has room for it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "dgc/sgd.h"

namespace dgc::train {

/// What is sent from a step on, at the least, and the time it was decided by.
struct RatioDecision {
  std::int64_t from_step = 0;
  double ratio = 0.0;
  double compute_seconds = 0.0;  ///< of a step, the mean of all ranks
};

/// One rank's part. Decisions are the same on all ranks. They are kept in `ratios.json` of the
/// mode's folder, where a run that is resumed finds them, so that it repeats what was decided.
class RatioControl {
 public:
  /// `least` is what the run needs: it never sends less. Decides about fifty times in `steps`.
  RatioControl(Sgd& sgd, std::filesystem::path folder, double least, std::uint64_t steps);

  /// Takes over what an earlier part of the run has decided. A collective call.
  void resume();
  /// Of each step. Returns what to tell people, empty where nothing changes. A collective call.
  std::string after_step(double compute_seconds);

 private:
  void keep() const;
  RatioDecision decide(std::int64_t from_step);

  Sgd& sgd_;
  std::filesystem::path file_;
  double least_, now_;
  std::uint64_t every_, last_;
  std::vector<RatioDecision> decisions_;  // by step; of a resumed run, also those still to come
  double compute_ = 0.0;                  // seconds, since the last decision
  std::uint64_t steps_ = 0;               // since then
};

}  // namespace dgc::train
