// Which parameters are compressed and exchanged together, and in which order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace dgc::sgd {

/// Parameters by number, increasing, as an Exchange wants them.
using BucketPlan = std::vector<std::vector<std::size_t>>;

/// Buckets of neighbours of up to `bucket_bytes` (one parameter at least), last parameters first:
/// backward produces their gradients first. `bytes` by parameter.
BucketPlan plan_buckets(std::span<const std::uint64_t> bytes, std::uint64_t bucket_bytes);

}  // namespace dgc::sgd
