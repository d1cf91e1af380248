// What the algorithms share: the parts of an Exchange, and the contents of a Bucket.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dgc/exchange.h"
#include "exchange/layout.h"

namespace dgc::exchange {

struct Context {
  Group& group;
  const std::vector<TensorSpec>& model;
  State& state;
  Compressor& compressor;
  const ExchangeOptions& options;

  /// k of a tensor of the state at this step.
  Load load_of(std::size_t tensor) const;
  /// Throws unless the message is valid, of this step and schema, says that it is from `sender`,
  /// and is of these tensors, which have the sizes that the gradients say: after that it can be
  /// applied blindly. `peer` is whom it came from, as users count ranks.
  void check_message(std::span<const std::byte> message, int sender, int peer, const char* phase,
                     std::span<const Gradient> tensors) const;
};

/// Adds what a phase moves to a bucket's list.
class PhaseMeter {
 public:
  PhaseMeter(const Group& group, Bucket::Impl& bucket, std::string name);
  ~PhaseMeter();
  PhaseMeter(const PhaseMeter&) = delete;
  PhaseMeter& operator=(const PhaseMeter&) = delete;

 private:
  const Group& group_;
  Bucket::Impl& bucket_;
  std::string name_;
  Traffic before_;
};

/// New residuals of a range, written when the step is committed: until then it can be taken back.
struct ResidualRange {
  std::size_t tensor;
  std::size_t begin;
  std::vector<float> values;
  std::vector<std::uint32_t> masked;  // indices in the tensor whose velocity is cleared
};
/// An error of rounding that goes back into the residual at the commit.
struct ResidualError {
  std::size_t tensor;
  std::uint32_t index;
  float value;
};

/// `next` is for Group::swap.
void run_allgather(Context& context, std::span<const Gradient> gradients,
                   const Compressor::Call& call, std::span<const std::uint64_t> next,
                   Bucket::Impl& bucket);
void run_owner(Context& context, std::span<const Gradient> gradients, const Compressor::Call& call,
               Bucket::Impl& bucket);
void run_dense(Context& context, std::span<const Gradient> gradients, const Compressor::Call& call,
               Bucket::Impl& bucket);
void run_hierarchical(Context& context, const Topology& topology,
                      std::span<const Gradient> gradients, const Compressor::Call& call,
                      Bucket::Impl& bucket);

/// Compares a text of all ranks, line by line. Throws Error(configuration_mismatch) naming the
/// first difference, the same on every rank.
void handshake(Group& group, const std::string& description);
/// Throws Error(diverged) unless all ranks hold the same parameters.
void compare_parameters(Group& group, std::span<const std::span<float>> parameters,
                        std::uint64_t step);

}  // namespace dgc::exchange

namespace dgc {

struct Bucket::Impl {
  /// Messages to be added, in this order. Where `offsets` is not empty, tensor t of message i
  /// begins at offsets[i][t] of its target and has the size that the message says.
  std::vector<std::vector<std::byte>> messages;
  std::vector<std::vector<std::size_t>> offsets;
  /// Sums of tensors that went densely, end to end.
  std::vector<std::size_t> dense_tensors;
  std::vector<float> dense_sum;
  /// What rounding took from them, if anything; it goes back into the residual at the commit.
  std::vector<float> dense_errors;

  std::vector<exchange::ResidualRange> ranges;
  std::vector<exchange::ResidualError> errors;

  std::vector<Phase> phases;
  std::uint64_t message_bytes = 0;
  std::string choice;
  Seconds seconds;
};

}  // namespace dgc
