// Tensors that go densely: each rank sums a part of them.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "exchange/context.h"
#include "exchange/parcels.h"

namespace dgc::exchange {

/// Some tensors of a bucket, laid end to end and cut into a part for each rank.
class DenseParts {
 public:
  DenseParts(Context& context, std::span<const Gradient> gradients);

  /// Bytes that a worker emits: its values, once.
  std::size_t bytes() const;
  /// Bytes of the values that each rank sends in the first round, and in the second.
  std::vector<std::size_t> sizes_to_me() const;
  std::vector<std::size_t> sizes_from_each() const;

  /// Compresses; behind a copy of `message` for each rank, its part of the selected values.
  Outbox lay_out(const Compressor::Call& call, std::span<const std::byte> message);
  /// Behind `message`, the sum of this rank's part over all ranks, in their order.
  std::vector<std::byte> reduce(std::span<const Received> all, std::vector<std::byte> message);
  /// The sums of all parts.
  void gather(std::span<const Received> all, Contents& contents);

 private:
  std::span<float> part(std::vector<float>& of, int rank) const;
  std::size_t part_bytes(int rank) const;
  void append(std::vector<std::byte>& parcel, std::span<const float> values,
              std::span<float> errors) const;

  Context& context_;
  std::span<const Gradient> gradients_;
  ValueType type_;
  std::size_t total_ = 0;      // elements
  std::vector<float> values_;  // what this rank selected, then the sums
  std::vector<float> errors_;  // what rounding took; empty for fp32
};

/// Most bytes of a part, of so many elements in all.
std::uint64_t largest_part(const Context& context, std::uint64_t elements);

/// Throws Error(nonfinite_value) that names the tensor and the first bad place. `sum` begins at
/// `begin` of the tensor.
void check_finite_sum(const Context& context, std::size_t tensor, std::span<const float> sum,
                      std::size_t begin);

}  // namespace dgc::exchange
