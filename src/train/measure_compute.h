// How long a model takes to compute a step.
#pragma once

#include "models/catalogue.h"

namespace dgc::train {

/// Seconds of forward and backward of one worker with a batch of so many examples: the median of a
/// few steps on generated data, after one that is not counted. `threads` 0: all cores.
double measure_compute(const models::Model& model, int batch, int threads);

}  // namespace dgc::train
