// Collectives on a Group. Every rank calls the same ones in the same order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "dgc/group.h"

namespace dgc {

/// Longest message that a rank accepts from a peer unless it says otherwise.
inline constexpr std::uint64_t kDefaultMessageLimit = std::uint64_t{1} << 34;

/// Returns when all ranks have called it.
void barrier(Group& group);

/// `bytes` of `root`, of the same size everywhere, to all.
void broadcast(Group& group, std::span<std::byte> bytes, int root);

/// What every rank gave, by rank; sizes may differ. Lengths travel first and are compared with
/// `limit` (limit_exceeded) before anything is allocated.
std::vector<std::vector<std::byte>> all_gather(Group& group, std::span<const std::byte> mine,
                                               std::uint64_t limit = kDefaultMessageLimit);

/// outgoing[i] goes to rank i; the result holds what each rank sent here. outgoing has size()
/// parts, one's own is copied.
std::vector<std::vector<std::byte>> all_to_all(Group& group,
                                               std::span<const std::span<const std::byte>> outgoing,
                                               std::uint64_t limit = kDefaultMessageLimit);

/// Part `index` of `count` elements cut into `parts`, as even as possible.
struct Range {
  std::size_t begin;
  std::size_t end;
  std::size_t size() const { return end - begin; }
};
Range part_of(std::size_t count, int parts, int index) noexcept;

/// Replaces `values` by the sum over all ranks, added in the order of the ranks: the same bits on
/// every rank and every engine. Reduce-scatter, then gather: 2 (N-1)/N of the array received by
/// each rank, as in a ring. All ranks give the same size.
void all_reduce(Group& group, std::span<float> values);

}  // namespace dgc
