// Compressed gradients of all workers, summed: the algorithms over a Group. docs/exchange.md has
// the steps, bytes and messages of each.
#pragma once

#include <cstdint>
#include <functional>
#include <future>
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

struct ExchangeOptions {
  Algorithm algorithm = Algorithm::automatic;
  /// Parameters are hashed and compared after the first step of an Exchange, and whenever the
  /// number of steps is a multiple of this; 0 turns it off. See also check_parameters().
  int check_parameters_every = 100;
  /// Values of the dense algorithm: fp32, fp16 or bf16. Rounding errors go back into the residual.
  ValueType dense_transport = ValueType::fp32;
  /// For `automatic`: the link between workers. Empty: it is measured, and the work as well, when
  /// the Exchange is made. Given, the default Costs go with it, and a run chooses as another did.
  std::optional<Link> link = {};
  /// For `automatic`: the constants of another Exchange (its costs()), to choose as that one did.
  /// Wins over `link`.
  std::optional<Costs> costs = {};
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

/// Workers on one host, for the hierarchical algorithm.
struct Topology {
  int host = 0;  ///< which host this rank is on
  int hosts = 1;
  int local_rank = 0;  ///< place among the ranks of its host
  int local_size = 1;
  std::vector<int> local;         ///< ranks of this host
  std::vector<int> counterparts;  ///< ranks with this local_rank, by host
};
/// Finds out who shares a host, by Group::host() or, where it is not empty, by `host` (for
/// containers and network namespaces). Throws Error(configuration_mismatch) where hosts have
/// unequal numbers of workers. A collective call.
Topology find_topology(Group& group, const std::string& host = {});
/// The part of each tensor that a worker compresses under the hierarchical algorithm: make its
/// State of these, with rank `topology.host` of `topology.hosts`.
std::vector<TensorSpec> share_of(const std::vector<TensorSpec>& model, const Topology& topology);

/// What all ranks contributed to some tensors of a step, received and valid but not yet applied.
class Bucket {
 public:
  Bucket();
  Bucket(Bucket&&) noexcept;
  Bucket& operator=(Bucket&&) noexcept;
  ~Bucket();

  /// By phase, in the order they ran.
  const std::vector<Phase>& phases() const noexcept;
  /// Bytes this worker emitted: its own message, or its dense array, once.
  std::uint64_t message_bytes() const noexcept;
  /// How many tensors went by each algorithm ("allgather 54, dense 107").
  std::string choice() const;
  /// Where the time of collect() went.
  struct Seconds {
    double compress = 0.0;
    double encode = 0.0;
    double exchange = 0.0;  ///< moving, waiting for others, checking what came
  };
  const Seconds& seconds() const noexcept;

  struct Impl;
  std::unique_ptr<Impl> impl;
};

/// One rank's side of the exchange of a model's gradients. All ranks make the same calls.
///
///     Exchange exchange(group, model, state, compress_options, exchange_options);
///     exchange.step(gradients, parameters, -lr);
///
/// Errors: those of Compressor, of Group and of messages, with the peer named;
/// configuration_mismatch from the constructor's handshake, naming the first difference; diverged.
/// A rank on which a step fails tells the others, keeps its parameters, and gets back into u and v
/// what it had selected.
class Exchange {
 public:
  /// Compares version, world size, model, options and step of all ranks. `model` are the whole
  /// tensors; `state` is made of them too, or of share_of() them for the hierarchical algorithm.
  Exchange(Group& group, std::vector<TensorSpec> model, State& state, CompressOptions compress,
           ExchangeOptions options);
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  /// A whole step: `targets[tensor]` += alpha · the sum over all ranks. Gradients of the whole
  /// tensors, in increasing order; targets for every tensor of the model.
  Bucket step(std::span<const Gradient> gradients, std::span<const std::span<float>> targets,
              float alpha, const Compressor::Call& call = {});

  /// The parts of a step, for several buckets: collect each, apply all when all are there, then
  /// commit. If any fails, u and v get back what this step selected (collect does that itself, and
  /// restore() is for failures between the parts), and the group is dead.
  /// `next` are bounds of the group's following swaps, where they are known (Group::swap).
  Bucket collect(std::span<const Gradient> gradients, const Compressor::Call& call = {},
                 std::span<const std::uint64_t> next = {});
  void apply(const Bucket& bucket, std::span<const std::span<float>> targets, float alpha) const;
  /// The same with a factor for each tensor, such as learning rates of its own.
  void apply(const Bucket& bucket, std::span<const std::span<float>> targets,
             std::span<const float> alphas) const;
  /// Also compares parameter hashes when it is time to: errors of that come after the step was
  /// committed, and say so.
  void commit(std::span<Bucket> buckets, std::span<const std::span<float>> targets);
  void restore() noexcept;

  /// What the swap of collect() may need for these tensors, in increasing order, at this step; 0
  /// where the algorithm makes none.
  std::uint64_t swap_bound(std::span<const std::size_t> tensors) const;

  /// Compares the parameters of all ranks now, whatever check_parameters_every says: at the end of
  /// a run. Throws Error(diverged), naming the rank. A collective call.
  void check_parameters(std::span<const std::span<float>> parameters);

  Compressor& compressor() noexcept;
  /// What `automatic` chooses by; the same on all ranks.
  const Costs& costs() const noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Runs work on one thread of its own, in the order given: collect() of bucket after bucket, while
/// backward goes on. Destruction waits for what was given, so declare it after the Exchange and all
/// that the work refers to; wait for all futures before calling restore().
class Driver {
 public:
  Driver();
  ~Driver();
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  std::future<Bucket> submit(std::function<Bucket()> work);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dgc
