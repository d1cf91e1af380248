// Collectives over Group::exchange. Everybody talks to everybody at once, so that a collective
// takes one or two rounds however many ranks there are, and whoever is missing is known by name;
// only broadcast goes down a tree. Sums run in the order of the ranks, never in that of arrival.
#include "dgc/collectives.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace dgc {
namespace {

std::span<const std::byte> bytes_of(std::span<const float> values) { return std::as_bytes(values); }

/// Runs `per_peer(peer)` for every other rank, beginning after one's own: ranks then do not all
/// turn to rank 0 first.
template <typename PerPeer>
void for_each_peer(const Group& group, PerPeer&& per_peer) {
  for (int i = 1; i < group.size(); ++i) per_peer((group.rank() + i) % group.size());
}

}  // namespace

void barrier(Group& group) {
  // A byte from everybody to everybody: one round, and whoever is missing is known by name.
  const std::byte here{1};
  std::vector<std::byte> there(static_cast<std::size_t>(group.size()));
  std::vector<Outgoing> sends;
  std::vector<Incoming> receives;
  for_each_peer(group, [&](int peer) {
    sends.push_back({peer, {&here, 1}});
    receives.push_back({peer, std::span(there).subspan(static_cast<std::size_t>(peer), 1)});
  });
  group.exchange(sends, receives);
}

void broadcast(Group& group, std::span<std::byte> bytes, int root) {
  if (root < 0 || root >= group.size()) {
    throw Error(ErrorCode::invalid_argument, "broadcast", fmt::format("root {}", root),
                fmt::format("there are {} ranks", group.size()));
  }
  // A binomial tree over ranks counted from the root: log2(N) rounds.
  const int me = (group.rank() - root + group.size()) % group.size();
  const auto real = [&](int virtual_rank) { return (virtual_rank + root) % group.size(); };
  for (int reach = 1; reach < group.size(); reach *= 2) {
    if (me < reach && me + reach < group.size()) {
      const Outgoing send{real(me + reach), bytes};
      group.exchange({&send, 1}, {});
    } else if (me >= reach && me < 2 * reach) {
      const Incoming receive{real(me - reach), bytes};
      group.exchange({}, {&receive, 1});
    }
  }
}

std::vector<std::vector<std::byte>> all_to_all(Group& group,
                                               std::span<const std::span<const std::byte>> outgoing,
                                               std::uint64_t limit) {
  const auto ranks = static_cast<std::size_t>(group.size());
  const auto me = static_cast<std::size_t>(group.rank());
  if (outgoing.size() != ranks) {
    throw Error(ErrorCode::invalid_argument, "all_to_all", fmt::format("{} parts", outgoing.size()),
                fmt::format("for {} ranks", ranks));
  }
  // Lengths first: an engine must never be sent more than it has room for.
  std::vector<std::uint64_t> lengths_out(ranks);
  std::vector<std::uint64_t> lengths_in(ranks);
  for (std::size_t i = 0; i < ranks; ++i) lengths_out[i] = outgoing[i].size();
  std::vector<Outgoing> sends;
  std::vector<Incoming> receives;
  for_each_peer(group, [&](int peer) {
    const auto p = static_cast<std::size_t>(peer);
    sends.push_back({peer, std::as_bytes(std::span(lengths_out).subspan(p, 1))});
    receives.push_back({peer, std::as_writable_bytes(std::span(lengths_in).subspan(p, 1))});
  });
  group.exchange(sends, receives);
  for_each_peer(group, [&](int peer) {
    const std::uint64_t length = lengths_in[static_cast<std::size_t>(peer)];
    if (length <= limit) return;
    const Error error(ErrorCode::limit_exceeded, "receive",
                      fmt::format("rank {}", group.world_rank(peer)),
                      fmt::format("announces {} bytes, the limit is {}", length, limit));
    group.fail(error);
    throw Error(error);
  });

  std::vector<std::vector<std::byte>> incoming(ranks);
  incoming[me].assign(outgoing[me].begin(), outgoing[me].end());
  sends.clear();
  receives.clear();
  for_each_peer(group, [&](int peer) {
    const auto p = static_cast<std::size_t>(peer);
    incoming[p].resize(lengths_in[p]);
    sends.push_back({peer, outgoing[p]});
    receives.push_back({peer, incoming[p]});
  });
  group.exchange(sends, receives);
  return incoming;
}

std::vector<std::vector<std::byte>> all_gather(Group& group, std::span<const std::byte> mine,
                                               std::uint64_t limit) {
  const std::vector<std::span<const std::byte>> same(static_cast<std::size_t>(group.size()), mine);
  return all_to_all(group, same, limit);
}

Range part_of(std::size_t count, int parts, int index) noexcept {
  const auto p = static_cast<std::size_t>(parts);
  const auto i = static_cast<std::size_t>(index);
  const std::size_t base = count / p;
  const std::size_t longer = count % p;  // the first so many parts have one more
  const std::size_t begin = i * base + std::min(i, longer);
  return {begin, begin + base + (i < longer ? 1 : 0)};
}

void all_reduce(Group& group, std::span<float> values) {
  const int ranks = group.size();
  if (ranks == 1) return;
  const auto part = [&](int r) {
    const Range range = part_of(values.size(), ranks, r);
    return values.subspan(range.begin, range.size());
  };
  const std::span<float> own = part(group.rank());
  std::vector<float> theirs(own.size() * static_cast<std::size_t>(ranks));
  const auto from = [&](int r) {
    return std::span(theirs).subspan(static_cast<std::size_t>(r) * own.size(), own.size());
  };
  std::vector<Outgoing> sends;
  std::vector<Incoming> receives;
  for_each_peer(group, [&](int peer) {
    sends.push_back({peer, bytes_of(part(peer))});
    receives.push_back({peer, std::as_writable_bytes(from(peer))});
  });
  group.exchange(sends, receives);
  std::copy(own.begin(), own.end(), from(group.rank()).begin());
  for (std::size_t i = 0; i < own.size(); ++i) {
    float sum = from(0)[i];
    for (int r = 1; r < ranks; ++r) sum += from(r)[i];
    own[i] = sum;
  }
  sends.clear();
  receives.clear();
  for_each_peer(group, [&](int peer) {
    sends.push_back({peer, bytes_of(own)});
    receives.push_back({peer, std::as_writable_bytes(part(peer))});
  });
  group.exchange(sends, receives);
}

}  // namespace dgc
