// The optimizer that a run's settings ask for.
#pragma once

#include <string>

#include "dgc/sgd.h"
#include "train/settings.h"

namespace dgc::train {

/// `mode` is one of modes_of(). Throws Error(invalid_argument).
SgdOptions optimizer_options(const Settings& settings, const std::string& mode,
                             std::int64_t steps_per_epoch);

}  // namespace dgc::train
