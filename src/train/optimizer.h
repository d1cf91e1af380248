// The optimizer that a run's settings ask for.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dgc/local_steps.h"
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

/// By name. Each tensor once, also where modules share it.
std::vector<std::pair<std::string, torch::Tensor>> distinct_parameters(
    const torch::nn::Module& model);

/// The optimizer of one worker: settings.inner, on all parameters of the model. AdamW and Adam have
/// the betas of language models, 0.9 and 0.95; AdamW decays matrices only. Tied parameters count
/// once.
std::unique_ptr<torch::optim::Optimizer> make_inner(const Settings& settings,
                                                    const torch::nn::Module& model);

/// For modes with local steps. What the settings leave open is as in LocalStepsOptions.
LocalStepsOptions local_options(const Settings& settings, const std::string& mode);

}  // namespace dgc::train
