// Owners of index ranges select again: what each rank computes between the two rounds of
// exchange/owner.cpp. Nothing here knows an engine: the Python package has the same rounds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "dgc/compressor.h"
#include "dgc/state.h"
#include "exchange/layout.h"

namespace dgc::exchange {

/// New residuals of a range, written when the step is committed: until then it can be taken back.
struct ResidualRange {
  std::size_t tensor;
  std::size_t begin;
  std::vector<float> values;
  std::vector<std::uint32_t> masked;  // indices in the tensor whose velocity is cleared
};
/// An error of rounding, or momentum, that goes back into the residual at the commit.
struct ResidualError {
  std::size_t tensor;
  std::uint32_t index;
  float value;
};

/// What owners change in this rank's state, when the step is committed.
struct OwnerChanges {
  std::vector<ResidualRange> ranges;
  std::vector<ResidualError> errors;

  /// `masks`: with momentum factor masking.
  void apply(State& state, bool masks) const;
};

/// The tensors of a bucket, and who owns what of them. Refers to state and options.
class Owners {
 public:
  Owners(const State& state, const CompressOptions& options, std::uint64_t step,
         std::span<const std::size_t> tensors);

  /// Most bytes of the frames that a rank sends to an owner, and of those that an owner sends.
  struct Bounds {
    std::uint64_t to = 0;
    std::uint64_t from = 0;
  };
  Bounds bounds() const;

  /// This worker's selection, the whole message, cut up into a message for each owner. What
  /// re-encoding changes is in `changes`.
  std::vector<std::vector<std::byte>> slices_of(const CheckedMessage& whole, const Notice& notice,
                                                OwnerChanges& changes) const;
  /// What this rank selects of the sum of its ranges: of its whole residual there, and everybody's
  /// slices, by rank. How many: as owner_entries says. The rest, in `changes`, is its new residual.
  /// Throws Error(index_out_of_range) for a slice of another owner.
  std::vector<std::byte> choose(std::span<const CheckedMessage* const> slices, const Notice& notice,
                                OwnerChanges& changes) const;

 private:
  std::uint64_t range(std::size_t t, std::size_t owner) const {
    return cuts_[t][owner + 1] - cuts_[t][owner];
  }
  std::size_t place_of(std::uint32_t tensor) const;
  std::vector<std::byte> message_of(const Notice& notice, std::span<const FrameInput> frames,
                                    std::vector<std::vector<float>>& decoded) const;
  std::vector<std::vector<float>> sums_of(std::span<const CheckedMessage* const> slices,
                                          std::vector<std::uint64_t>& received,
                                          OwnerChanges& changes) const;
  std::uint64_t entries_of(std::size_t t, std::uint64_t received) const;

  const State& state_;
  const CompressOptions& options_;
  std::vector<std::size_t> tensors_;
  std::vector<Load> loads_;
  std::vector<std::vector<std::uint64_t>> cuts_;
};

}  // namespace dgc::exchange
