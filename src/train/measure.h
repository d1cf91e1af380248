// How long a model takes to compute a step.
#pragma once

#include "train/settings.h"

namespace dgc::train {

/// Seconds of forward and backward of one worker with these settings' model, batch and threads (0:
/// all cores): the median of `steps`, after one that is not counted.
double measure_compute(const Settings& settings, int steps);

}  // namespace dgc::train
