// What compressed rounds of local steps do where nobody says otherwise: as in LocalStepsOptions,
// for code without libtorch.
#pragma once

#include "dgc/compressor.h"

namespace dgc::train {

inline constexpr double kLocalRatio = 1.0 / 64;
inline constexpr float kLocalResidualDecay = 0.95f;
inline constexpr ValueType kLocalValues = ValueType::table2;

}  // namespace dgc::train
