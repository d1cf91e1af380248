// Checks of what a user may ask of a compressor.
#pragma once

#include "dgc/compressor.h"

namespace dgc::compress {

/// Throws Error(invalid_argument) for options outside their domain or that the state cannot serve.
void check_options(const CompressOptions& options, const State& state);

}  // namespace dgc::compress
