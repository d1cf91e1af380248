// Which parameters are compressed and exchanged together, and in which order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "dgc/exchange.h"

namespace dgc::sgd {

/// Buckets of neighbours of up to `bucket_bytes` (one parameter at least), last parameters first:
/// backward produces their gradients first. `bytes` by parameter.
Buckets plan_buckets(std::span<const std::uint64_t> bytes, std::uint64_t bucket_bytes);

}  // namespace dgc::sgd
