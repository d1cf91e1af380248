// The constants of dgc/costs.h, measured.
#pragma once

#include <cstdint>

#include "dgc/compressor.h"
#include "dgc/costs.h"
#include "dgc/group.h"

namespace dgc::exchange {

struct Probe {
  CompressOptions compress;  ///< that are going to be used
  ValueType dense_transport = ValueType::fp32;
  std::uint64_t elements = 0;  ///< of the model: what fits into a cache is measured there
};

/// Takes a fraction of a second, and at most about one where the link is slow; a rank sends
/// at most 6 times the model, or 200 MiB, and only where that is fast. The same on all ranks:
/// medians of what they measured. Defaults for a group of one. A collective call.
Costs measure_costs(Group& group, const Probe& probe);

}  // namespace dgc::exchange
