// What steps and exchanges add up to over a run.
#pragma once

#include "train/record.h"
#include "train/stepper.h"

namespace dgc::train {

/// After Stepper::step(), which took so many seconds. `ring_bytes` are what a dense ring would have
/// brought down.
void count_step(Totals& totals, const Stepper& stepper, double ring_bytes, double seconds);

/// After Stepper::come_together().
void count_exchange(Totals& totals, const Stepper& stepper, double seconds);

}  // namespace dgc::train
