// Compressed gradients of all workers, summed: the algorithms over a Group. docs/exchange.md has
// the steps, bytes and messages of each.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dgc/compressor.h"
#include "dgc/costs.h"
#include "dgc/group.h"
#include "dgc/state.h"

namespace dgc {

enum class Algorithm {
  automatic,     ///< for each bucket what is predicted to take least time: see Costs
  allgather,     ///< every message to everybody: exact DGC
  owner,         ///< owners of index ranges select again; traffic does not grow with the workers
  dense,         ///< selected entries in a dense reduce-scatter and gather; exact DGC
  hierarchical,  ///< dense inside a host, allgather between hosts
};
std::string_view name_of(Algorithm algorithm) noexcept;
/// All of them.
std::span<const Algorithm> algorithms() noexcept;
/// Inverse of name_of. Throws Error(invalid_argument) that lists the accepted names.
Algorithm parse_algorithm(std::string_view name);

/// Over whom the mean of an entry is taken.
enum class Mean {
  workers,  ///< all: those who did not send it count as zero, for the rest is in their residual
  senders,  ///< those who sent it: larger steps where few did
};
std::string_view name_of(Mean mean) noexcept;
/// All of them.
std::span<const Mean> means() noexcept;
/// Inverse of name_of. Throws Error(invalid_argument) that lists the accepted names.
Mean parse_mean(std::string_view name);

struct ExchangeOptions {
  Algorithm algorithm = Algorithm::automatic;
  /// Parameters are hashed after the first step of an Exchange, and whenever the number of steps is
  /// a multiple of this; the hashes are compared in the step that follows. 0 turns it off. See also
  /// check_parameters().
  int check_parameters_every = 100;
  /// Over the senders needs to know who sent what: `allgather`, or `automatic`, which then is
  /// allgather. Tensors that are sent whole are sent by all.
  Mean mean = Mean::workers;
  /// Values of the dense algorithm: fp32, fp16 or bf16. Rounding errors go back into the residual.
  ValueType dense_transport = ValueType::fp32;
  /// A step in which a gradient of any rank is NaN or infinite is dropped on all ranks, as if it
  /// had not been. Costs a round more in each step. Otherwise such a step is an error.
  bool skip_nonfinite = false;
  /// For `automatic`: the link between workers. Empty: it is measured, and the work as well, when
  /// the Exchange is made. Given, the default Costs go with it, and a run chooses as another did.
  std::optional<Link> link = {};
  /// For `automatic`: the constants of another Exchange (its costs()), to choose as that one did.
  /// Wins over `link`.
  std::optional<Costs> costs = {};
  /// Measures the link and the work with any algorithm, for free_ratio().
  bool measure = false;
  /// Allows `automatic` to choose owner, which selects twice: not exactly what the others compute.
  bool reselect = false;
  /// Name of this machine for the hierarchical algorithm; empty: Group::host().
  std::string host = {};
};

/// What one phase of an exchange moved, on this rank.
struct Phase {
  std::string name;
  Traffic traffic;
};

/// Tensors that travel together, by their places in the model, each list in increasing order. All
/// lists together have every tensor once.
using Buckets = std::vector<std::vector<std::size_t>>;

/// What all ranks contributed to a step: received and checked, but not yet applied.
class Collected {
 public:
  Collected();
  Collected(Collected&&) noexcept;
  Collected& operator=(Collected&&) noexcept;
  ~Collected();

  std::vector<bool> present;  ///< by tensor: some rank had a gradient; the others are left alone
  bool skipped = false;       ///< not finite somewhere (skip_nonfinite): there is nothing to apply
  bool stop = false;          ///< some rank asked for it
  std::vector<Phase> phases;  ///< in the order they ran
  /// Bytes this worker emitted: its own message, or its dense array, once.
  std::uint64_t message_bytes = 0;
  Traffic moved;
  /// How many tensors went by each algorithm ("allgather 54, dense 107").
  std::string choice;
  std::vector<bool> densely;  ///< by tensor: it went as values without positions
  /// Where the time went.
  struct Seconds {
    double compress = 0.0;
    double encode = 0.0;
    double exchange = 0.0;    ///< moving, waiting for others, checking what came
    double statistics = 0.0;  ///< the two norms below
    double waiting = 0.0;     ///< what finish() waited
  };
  Seconds seconds;
  /// Of what this rank accumulated, after 1/N and clipping, and of its residual; from a sample.
  double gradient_norm = 0.0;
  double residual_norm = 0.0;

 private:
  friend class Exchange;
  struct Contents;
  std::unique_ptr<Contents> contents_;
};

/// Time of a step that an exchange may use: see Exchange::free_ratio.
struct FreeTime {
  double compute = 0.0;  ///< seconds that a step computes: forward and backward
  double hidden = 0.0;   ///< seconds of them in which buckets can be on their way
};

/// One rank's side of the exchange of a model's gradients. All ranks make the same calls.
///
///     Exchange exchange(group, model, compress_options);
///     exchange.step(gradients, parameters, -lr);
///
/// The parts of a step, for gradients that come one after the other:
///
///     exchange.submit(gradients);              // bucket after bucket, while backward goes on
///     Collected sums = exchange.finish();
///     exchange.apply(sums, parameters, -lr);
///     exchange.commit(sums, parameters);
///
/// Buckets are exchanged by a thread of the exchange's own, in the order they were given. It is
/// started by the first submit(). From then until finish() or abandon() the group and the gradients
/// are its own; all other calls belong to one thread of the caller's.
///
/// A gradient that this rank lacks is left out of the call. Where another rank has one, this rank
/// contributes what it had accumulated; a tensor of which no rank has a gradient is left alone.
///
/// Errors: those of Compressor, of Group and of messages, with the peer named;
/// configuration_mismatch from the constructor's handshake, naming the first difference; diverged.
/// A rank on which a step fails tells the others in its message, keeps its parameters, and gets
/// back into u and v what it had selected. The group is dead after that.
class Exchange {
 public:
  /// Compares version, world size, model, buckets, options and step of all ranks. Without `state`
  /// it makes one of its own; one that is given has to outlive it, and to have the tensors that
  /// state() of another Exchange of this kind has. Without `buckets` there is one, with everything.
  Exchange(Group& group, std::vector<TensorSpec> model, CompressOptions compress,
           ExchangeOptions options = {}, State* state = nullptr, Buckets buckets = {});
  /// Waits for the bucket under way, if there is one. A step that was begun and not finished is
  /// announced as failed.
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  /// A whole step on the calling thread: `targets[tensor]` += alpha · the sum over all ranks.
  /// Gradients in increasing order of tensor; targets for every tensor of the model.
  Collected step(std::span<const Gradient> gradients, std::span<const std::span<float>> targets,
                 float alpha, const Compressor::Call& call = {});

  /// Begins the exchange of the next bucket. The gradients' memory stays the caller's, and has to
  /// stay as it is until finish(). With clipping and several buckets, `call` has the norm of all.
  void submit(std::span<const Gradient> gradients, const Compressor::Call& call = {});
  /// Buckets of this step that submit() was called for.
  std::size_t submitted() const noexcept;
  /// Waits for all buckets. An Error has abandoned the step.
  Collected finish();
  /// Ends a step that cannot be finished: waits for what is under way, tells the other ranks, gives
  /// u and v back what was selected, and accumulates those of `gradients` that were not yet, as in
  /// a step that sent nothing: no gradient is lost.
  void abandon(const Error& cause, std::span<const Gradient> gradients = {},
               const Compressor::Call& call = {}) noexcept;

  void apply(const Collected& collected, std::span<const std::span<float>> targets,
             float alpha) const;
  /// The same with a factor for each tensor, such as learning rates of its own.
  void apply(const Collected& collected, std::span<const std::span<float>> targets,
             std::span<const float> alphas) const;
  /// The step has happened: residuals and the step number change. Hashes `targets`, the parameters,
  /// when that is due.
  void commit(const Collected& collected, std::span<const std::span<float>> targets);

  /// Told to the other ranks with the next bucket; see Collected::stop. From any thread.
  void request_stop() noexcept;

  /// Compares the parameters of all ranks now, whatever check_parameters_every says: at the end of
  /// a run. Throws Error(diverged), naming the rank. A collective call.
  void check_parameters(std::span<const std::span<float>> parameters);

  State& state() noexcept;
  const State& state() const noexcept;
  /// Of the last step, by tensor.
  std::span<const TensorStats> stats() const noexcept;
  /// Factor that clipping applied in the last step.
  double clip_factor() const noexcept;
  /// Norm of these gradients, for Compressor::Call::norm.
  double norm(std::span<const Gradient> gradients) const;
  /// What `automatic` chooses by; the same on all ranks.
  const Costs& costs() const noexcept;

  /// The largest ratio, from `least` to 0.25, at which the exchange is free, or nearly, as its
  /// costs() predict: it ends while backward goes on (`time.hidden`), or adds at most 5 % to the
  /// step. All ranks that give the same numbers get the same. See ExchangeOptions::measure.
  double free_ratio(const FreeTime& time, double least) const;
  /// From this step on (counted from 0), at least this share of the gradients is sent, whatever the
  /// schedule says: Schedule::raised. All ranks call it between the same two steps. Once a step was
  /// done, `from_step` is not the next one, for whose messages room is made already.
  void raise_ratio(std::int64_t from_step, double ratio);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dgc
