// The head of summary.json: what was run, when, and on what machine.
#pragma once

#include "train/record.h"
#include "train/settings.h"

namespace dgc::train {

/// Without facts and modes.
Summary summary_head(const Settings& settings);

}  // namespace dgc::train
