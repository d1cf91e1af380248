// What the algorithms share: the parts of an Exchange, a bucket on its way, and what came of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dgc/exchange.h"
#include "exchange/layout.h"
#include "exchange/owners.h"

namespace dgc::exchange {

/// Unchanged parts of an Exchange.
struct Context {
  Group& group;
  const std::vector<TensorSpec>& model;
  State& state;
  Compressor& compressor;
  const ExchangeOptions& options;
  const Costs& costs;

  /// k of a tensor of the state at a step.
  Load load_of(std::size_t tensor, std::uint64_t step) const;
  Load load_of(std::size_t tensor) const { return load_of(tensor, state.step()); }
  /// How a tensor's values travel in messages.
  ValueType values_of(const Load& load) const;
  /// Most bytes of a tensor's frame at a step.
  std::uint64_t frame_bound_of(std::size_t tensor, std::uint64_t step) const;
};

/// Bounds of the messages of the rounds to come, the first for the round that is next: all ranks
/// have the same, and make room for two rounds ahead (Group::swap).
class Rounds {
 public:
  explicit Rounds(std::vector<std::uint64_t> bounds) : bounds_(std::move(bounds)) {}
  /// Goes on to the next round and returns its bound.
  std::uint64_t next() { return bounds_.at(at_++); }
  std::span<const std::uint64_t> following() const { return std::span(bounds_).subspan(at_); }

 private:
  std::vector<std::uint64_t> bounds_;
  std::size_t at_ = 0;
};

/// A bucket on its way.
struct Task {
  Notice notice;                    // of this rank
  std::vector<Gradient> gradients;  // of all tensors of the bucket; zeros stand for those not here
  Compressor::Call call;
  Rounds rounds;
  std::optional<Error> refused = {};  // why this rank cannot take part

  void throw_if_refused() const {
    if (refused) throw Error(*refused);
  }
};

/// What a rank sent, checked.
struct Received {
  Parcel parcel;  // holds what the others refer to
  CheckedMessage message;
  std::span<const std::byte> values;  // dense values that follow the message
};

/// What came of a bucket.
struct Contents {
  /// Messages to be added, in this order. Where `offsets` is not empty, tensor t of message i
  /// begins at offsets[i][t] of its target and has the size that the message says.
  std::vector<Received> messages;
  std::vector<std::vector<std::size_t>> offsets;
  /// Sums of tensors that went densely, end to end.
  std::vector<std::size_t> dense_tensors;
  std::vector<float> dense_sum;
  /// What rounding took from them, if anything; it goes back into the residual at the commit.
  std::vector<float> dense_errors;

  OwnerChanges changes;

  /// What any rank said: a tensor is present, a gradient is not finite, somebody wants to stop.
  Notice merged;

  std::vector<Phase> phases;
  std::uint64_t message_bytes = 0;
  Traffic moved;
  std::size_t sparse = 0;      // tensors that went as frames
  bool reselected = false;     // by owners
  bool lengths_first = false;  // room for the messages would have been too much
  Collected::Seconds seconds;
  double gradient_squares = 0.0;
  double residual_squares = 0.0;
};

/// Adds to the phase of that name, or appends it.
void add_phase(std::vector<Phase>& phases, const Phase& one);

/// Adds what a phase moves to a bucket's list.
class PhaseMeter {
 public:
  PhaseMeter(const Group& group, Contents& contents, std::string name);
  ~PhaseMeter();
  PhaseMeter(const PhaseMeter&) = delete;
  PhaseMeter& operator=(const PhaseMeter&) = delete;

 private:
  const Group& group_;
  Contents& contents_;
  std::string name_;
  Traffic before_;
};

/// The message of `sparse` to everybody, and with it each rank's part of `dense`; then, if there is
/// any, the sums of the parts.
void run_allgather(Context& context, Task& task, std::span<const Gradient> sparse,
                   std::span<const Gradient> dense, Contents& contents);
void run_owner(Context& context, Task& task, Contents& contents);

/// Bounds of the rounds of run_allgather and run_owner for these tensors at a step.
std::vector<std::uint64_t> allgather_bounds(const Context& context, std::uint64_t step,
                                            std::span<const std::size_t> sparse,
                                            std::span<const std::size_t> dense);
std::vector<std::uint64_t> owner_bounds(const Context& context, std::uint64_t step,
                                        std::span<const std::size_t> tensors);

/// Compares a text of all ranks, line by line. Throws Error(configuration_mismatch) naming the
/// first difference, the same on every rank.
void handshake(Group& group, const std::string& description);
std::uint64_t hash_of(std::span<const std::span<float>> parameters);
/// Throws Error(diverged) unless all ranks have the same parameters, by a round of its own.
void compare_parameters(Group& group, std::span<const std::span<float>> parameters,
                        std::uint64_t step);

}  // namespace dgc::exchange
