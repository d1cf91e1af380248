// Compute time of a model on this machine, for dgc plan.
#pragma once

#include <string>

namespace dgc::app {

/// Seconds of forward and backward of one worker with a batch of so many examples: the median of a
/// few steps on generated data. `threads` 0: all cores. Throws Error(engine_unavailable) in a build
/// without libtorch.
double measured_compute(const std::string& model, int batch, int threads);

}  // namespace dgc::app
