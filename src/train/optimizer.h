// The optimizer that a run's settings ask for.
#pragma once

#include <string>

#include "dgc/sgd.h"
#include "train/settings.h"

namespace dgc::train {

/// What the choice depends on beside the settings.
struct RunSize {
  int workers = 1;
  std::uint64_t steps = 0;
  std::int64_t steps_per_epoch = 0;
};
struct OptimizerChoice {
  SgdOptions options;
  std::string reason;       ///< of what the settings left open; for the run's first lines
  bool controlled = false;  ///< the ratio is the least: RatioControl sends more where that is free
};
/// `mode` is one of modes_of(). Throws Error(invalid_argument).
OptimizerChoice choose_optimizer(const Settings& settings, const std::string& mode,
                                 const torch::nn::Module& model, const RunSize& run);

}  // namespace dgc::train
