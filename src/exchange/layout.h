// Rank arithmetic of the exchange, as pure functions: who owns what, and what it costs.
#pragma once

#include <cstdint>
#include <vector>

#include "dgc/collectives.h"
#include "dgc/exchange.h"
#include "dgc/wire.h"

namespace dgc::exchange {

/// A tensor as far as its traffic is concerned.
struct Load {
  std::uint64_t elements;
  std::uint64_t entries;  // k
};

/// k of a tensor at a step.
Load load_of(const TensorSpec& spec, const CompressOptions& options, std::uint64_t step);
/// How a tensor's values travel in messages.
ValueType values_of(const CompressOptions& options, const Load& load) noexcept;

/// Cuts the elements of all tensors, laid end to end, into `owners` runs of about equal numbers of
/// expected entries. cuts[t][o] .. cuts[t][o + 1] is what owner o has of tensor t.
std::vector<std::vector<std::uint64_t>> owner_cuts(const std::vector<Load>& tensors, int owners);

/// What the owner of a range has got of a tensor.
struct Inflow {
  std::uint64_t elements;  ///< of its range
  std::uint64_t received;  ///< entries there, of all workers together
  int workers;
};
/// Entries that it selects. All workers together send N·k; it gives one back for N that came, so
/// that owners together select k, and ranges with larger entries more of them. `rounding` is in
/// [0, N).
std::uint64_t owner_entries(const Load& tensor, const Inflow& inflow,
                            std::uint64_t rounding) noexcept;
/// The most that it selects of `elements`: some times an even share of k.
std::uint64_t owner_most(const Load& tensor, std::uint64_t elements) noexcept;

/// Bytes that a worker receives for one tensor, predicted alike on every rank.
double allgather_bytes(const Load& tensor, ValueType values, int workers) noexcept;
double dense_bytes(const Load& tensor, ValueType transport, int workers) noexcept;

/// Bytes that a worker receives in a whole exchange (docs/exchange.md, "Algorithms"): `message` are
/// those of a worker's message, `dense` the elements that go densely as fp32. See shares_bytes for
/// algorithms under which workers of a host have shares.
double received_bytes(Algorithm algorithm, double message, double dense, int workers) noexcept;
/// A message's length, as counted.
inline constexpr double kLengthBytes = 8.0;
/// A message with a notice and nothing else, but for the notice's bits.
inline constexpr double kEmptyMessage = kMessageOverhead + 16.0;
/// Messages that a worker sends for it, lengths included.
double sent_messages(Algorithm algorithm, bool message, bool dense, int workers) noexcept;

}  // namespace dgc::exchange
