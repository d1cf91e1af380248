// What `auto` does with a bucket.
#pragma once

#include <vector>

#include "exchange/cost.h"

namespace dgc::exchange {

struct Choice {
  bool owner = false;       ///< the whole bucket; `dense` is then all false
  std::vector<bool> dense;  ///< by tensor: a dense slice, or a frame of the message
  double seconds = 0.0;     ///< predicted
};

/// The way that takes least time by exchange/cost.h, the same on all ranks. `reselect` allows
/// owner, which does not compute exactly what the others do.
Choice choose(const CostSetup& setup, std::span<const Item> items, bool reselect);

}  // namespace dgc::exchange
