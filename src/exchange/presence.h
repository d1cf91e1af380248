// What ranks tell each other before the tensors of a bucket are exchanged: which of them have a
// gradient, whether all are finite, whether to stop.
#pragma once

#include <cstdint>
#include <vector>

#include "dgc/group.h"

namespace dgc::exchange {

struct Presence {
  std::uint64_t step = 0;
  std::uint32_t bucket = 0;
  std::vector<bool> present;  ///< by tensor of the model; the same length on all ranks
  bool nonfinite = false;     ///< some gradient is NaN or infinite
  bool stop = false;
};

/// What holds on any rank: a tensor is present, a gradient is not finite, somebody wants to stop.
/// A few bytes to each other rank. `next` is for Group::swap.
/// Throws Error(configuration_mismatch) when ranks are at another step or bucket, and what Group
/// throws. A collective call.
Presence share_presence(Group& group, const Presence& mine,
                        std::span<const std::uint64_t> next = {});

/// Bytes that share_presence sends to each rank, for a model of so many tensors.
std::uint64_t presence_bytes(std::size_t tensors) noexcept;

}  // namespace dgc::exchange
