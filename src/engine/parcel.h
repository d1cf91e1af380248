// What Group::swap and the engines that do it share.
#pragma once

#include <fmt/format.h>

#include <cstdint>

#include "dgc/error.h"

namespace dgc {

/// A message's length, before it where the engine does not know it. Counted as traffic on every
/// engine, so that all count alike.
using ParcelHeader = std::uint64_t;

/// Throws Error(limit_exceeded) if a peer sent more than all ranks had agreed on.
inline void check_parcel(int peer, std::uint64_t length, std::uint64_t bound) {
  if (length <= bound) return;
  throw Error(ErrorCode::limit_exceeded, "receive", fmt::format("rank {}", peer),
              fmt::format("announces {} bytes, the limit is {}", length, bound));
}

}  // namespace dgc
