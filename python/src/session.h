// What the Python package keeps of a worker: u and v, and a Compressor over them. Tensors come as
// addresses, so that the extension knows no framework; whoever calls keeps them alive.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "dgc/compressor.h"
#include "dgc/state.h"
#include "exchange/owners.h"
#include "exchange/rules.h"

namespace dgc::python {

/// Memory of a tensor: Python says where it is with a number (data_ptr()).
template <typename T>
std::span<T> memory_at(std::uintptr_t address, std::size_t count) noexcept {
  return {reinterpret_cast<T*>(address), count};  // NOLINT(performance-no-int-to-ptr)
}

/// An array of floats in memory that belongs to the caller.
struct Array {
  std::size_t tensor = 0;
  std::uintptr_t address = 0;
  std::size_t elements = 0;

  std::span<float> values() const noexcept { return memory_at<float>(address, elements); }
};

/// Bytes in memory that belongs to the caller.
struct Bytes {
  std::uintptr_t address = 0;
  std::size_t size = 0;

  std::span<std::byte> span() const noexcept { return memory_at<std::byte>(address, size); }
};

/// All ranks' messages of a round, by rank, checked: nothing else is added or decoded.
class Parcels {
 public:
  /// Refers to the messages. Throws Error unless each is valid; then with the code and the cause of
  /// a rank that failed; then unless each is of this step, schema and bucket, from its rank, and
  /// about no other tensors; then where hashes of parameters differ.
  Parcels(const std::vector<Bytes>& messages, const Notice& mine, std::uint64_t step,
          std::uint32_t schema, const std::vector<exchange::Expected>& tensors);

  /// What any of the ranks said.
  const Notice& merged() const noexcept { return merged_; }
  const CheckedMessage& of(std::size_t rank) const { return messages_.at(rank); }
  std::size_t size() const noexcept { return messages_.size(); }
  /// Adds them to the targets, in the order of the ranks. Throws Error, with the targets untouched,
  /// unless there is one for each tensor.
  void add_to(const std::vector<Array>& targets, float alpha) const;
  /// The same with the mean of each entry over those who sent it (exchange/senders.h).
  void add_mean_of_senders(const std::vector<Array>& targets, float alpha,
                           const std::vector<bool>& whole) const;

 private:
  std::vector<CheckedMessage> messages_;
  Notice merged_;
};

/// A worker's side of a step that may turn out not to concern some tensors. A rank that has no
/// gradient of a tensor cannot know in time whether another has one. It goes on as with a gradient
/// of zero, and keeps what u and v were: if no rank had one, they are put back.
class Session {
 public:
  Session(std::vector<TensorSpec> tensors, std::uint32_t rank, std::uint32_t workers,
          const CompressOptions& options);

  State& state() noexcept { return state_; }
  const CompressOptions& options() const noexcept { return compressor_.options(); }
  double clip_factor() const noexcept { return compressor_.clip_factor(); }
  std::span<const TensorStats> stats() const noexcept { return compressor_.stats(); }

  /// From the next step on.
  void change_schedule(const Schedule& schedule) { compressor_.change_schedule(schedule); }

  double norm(const std::vector<Array>& gradients) const;
  /// As Compressor::compress. `notice` has a bit for each gradient, which is not set for those that
  /// stand for none, and are zero.
  std::size_t compress(const std::vector<Array>& gradients, const Notice& notice, const Bytes& out,
                       double scale, std::optional<double> norm);

  // With owners (exchange/owners.h) a bucket takes two rounds.

  /// Bounds of the messages of both, at any step: the same on all ranks.
  std::pair<std::uint64_t, std::uint64_t> owner_bounds(const std::vector<std::size_t>& tensors,
                                                       std::uint64_t step) const;
  /// As compress(): the messages to all ranks.
  std::vector<std::vector<std::byte>> compress_for_owners(const std::vector<Array>& gradients,
                                                          const Notice& notice, double scale,
                                                          std::optional<double> norm);
  /// What this rank, an owner, makes of what all ranks sent it: its message to all of them.
  std::vector<std::byte> choose(const std::vector<std::size_t>& tensors, const Parcels& slices,
                                const Notice& notice);

  /// With global momentum: these messages are part of the sum that all ranks apply. m/N of them
  /// goes back into v with the commit. Not for those of owners, who keep m of it themselves.
  void feed_back(const Parcels& parcels);
  /// The step was delivered; no rank had a gradient of `frozen`.
  void commit(const std::vector<std::size_t>& frozen);
  /// The step was not delivered.
  void restore();

 private:
  struct Kept {
    std::size_t tensor;
    std::vector<float> velocity;
    std::vector<float> residual;
  };
  void keep_absent(const std::vector<Array>& gradients, const Notice& notice);
  void put_back(const Kept& kept) noexcept;

  State state_;
  Compressor compressor_;
  std::vector<Kept> kept_;          // of the current step
  exchange::OwnerChanges changes_;  // of the current step, for the commit
};

}  // namespace dgc::python
