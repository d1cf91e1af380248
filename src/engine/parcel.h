// What Group::swap and the engines that do it share.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "dgc/error.h"
#include "dgc/group.h"

namespace dgc {

/// A message's length, before it where the engine does not know it. Counted as traffic on every
/// engine, so that all count alike.
using ParcelHeader = std::uint64_t;

/// Calls of swap() that room is made for. With one, a message that is sent as soon as the one
/// before it has arrived would have to wait for the news that there is room: a delay more.
inline constexpr std::size_t kParcelsAhead = 2;

/// `bytes` as a parcel, without a copy.
Parcel owning(std::vector<std::byte> bytes);

/// Throws Error(limit_exceeded) if a peer sent more than all ranks had agreed on.
inline void check_parcel(int peer, std::uint64_t length, std::uint64_t bound) {
  if (length <= bound) return;
  throw Error(ErrorCode::limit_exceeded, "receive", fmt::format("rank {}", peer),
              fmt::format("announces {} bytes, the limit is {}", length, bound));
}

}  // namespace dgc
