// dgc::LocalSteps: every worker trains by itself for H steps with any torch::optim::Optimizer, and
// then all workers exchange, compressed, what their parameters have changed by. Component torch.
// docs/libtorch.md shows how to use it.
//
//     one round:  theta0 = theta; H steps of the inner optimizer on theta
//                 delta = theta0 - theta;  theta = theta0
//                 e = beta·e + delta/N                       beta: residual_decay
//                 send the largest entries of e; take what was decoded out of e
//                 theta -= outer_lr · (sum of what all workers sent)
//
// At ratio 1, without decay and with outer_lr 1, a round is plain averaging of the parameters.
// The inner learning rate is inside delta, and so inside what is accumulated: with one local step
// of plain SGD an entry that waits is applied at the rate of the step it comes from. dgc::Sgd
// accumulates gradients and applies them at the rate of today.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/ordered_dict.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "dgc/exchange.h"
#include "dgc/sgd.h"

namespace dgc {

namespace local {
struct Internals;
}

/// A setter that can be chained and a getter for a member of a part.
#define DGC_PART_ARG(type, part, name)  \
 public:                                \
  LocalStepsOptions& name(type value) { \
    part.name = std::move(value);       \
    return *this;                       \
  }                                     \
  const type& name() const noexcept { return part.name; }

/// Options of local steps. All ranks give the same. The defaults are for compressed rounds: 1/64 of
/// the entries, 2 bits for each value, residual decay 0.95.
struct LocalStepsOptions {
  explicit LocalStepsOptions(int local_steps = 30) : local_steps_(local_steps) {
    compress.momentum = 0.0f;
    compress.schedule = Schedule(1.0 / 64);
    compress.values = ValueType::table2;
    compress.dense_values = ValueType::table2;
    compress.residual_decay = 0.95f;
    exchange.algorithm = Algorithm::allgather;
  }
  /// DiLoCo: everything is sent in fp32, by a dense all-reduce; outer Nesterov momentum 0.9 and
  /// rate 0.7 on the mean.
  static LocalStepsOptions diloco(int local_steps = 30);

  CompressOptions compress;
  ExchangeOptions exchange;

  /// H: steps of the inner optimizer in a round.
  TORCH_ARG(int, local_steps);
  /// What the mean change is multiplied by. See also LocalSteps::set_outer_lr.
  TORCH_ARG(double, outer_lr) = 1.0;
  /// Nesterov momentum on the mean change. Only where rounds are dense (ratio 1): with fewer
  /// entries, the decaying residual is in its place.
  TORCH_ARG(double, outer_momentum) = 0.0;

 public:
  /// beta, in (0, 1]: what is left of the residual before the change of a round is added to it.
  LocalStepsOptions& residual_decay(double value) {
    compress.residual_decay = static_cast<float>(value);
    return *this;
  }
  float residual_decay() const noexcept { return compress.residual_decay; }
  /// Share of the entries sent in each round. Its steps are rounds.
  DGC_PART_ARG(Schedule, compress, schedule)
  DGC_PART_ARG(Selection, compress, selection)
  /// Of sparse tensors. Rounding errors stay in the residual.
  DGC_PART_ARG(ValueType, compress, values)
  /// Of tensors that are sent whole: those of one dimension. Rounding errors stay there too.
  DGC_PART_ARG(ValueType, compress, dense_values)
  DGC_PART_ARG(Algorithm, exchange, algorithm)
  /// Values of the dense algorithm: fp32, fp16 or bf16.
  DGC_PART_ARG(ValueType, exchange, dense_transport)
  /// Of an entry: over all workers, or over those who sent it. The latter needs allgather.
  DGC_PART_ARG(Mean, exchange, mean)
  /// How parameters travel: `automatic` sends those of one dimension whole.
  TORCH_ARG(Send, send) = Send::automatic;

  /// Bytes of changes that are compressed and exchanged together. The next ones are computed
  /// meanwhile.
  TORCH_ARG(std::int64_t, bucket_bytes) = std::int64_t{25} << 20;
  /// Parameters are hashed and compared across ranks after the first round and every so many; 0
  /// turns it off.
  DGC_PART_ARG(int, exchange, check_parameters_every)
  DGC_PART_ARG(int, compress, threads)
};
#undef DGC_PART_ARG

/// Local steps of any optimizer, and rounds.
///
///     torch::optim::AdamW inner(model->parameters(), torch::optim::AdamWOptions(3e-4));
///     dgc::LocalSteps local(*group, *model, inner, dgc::LocalStepsOptions(30));
///     …
///     inner.zero_grad();
///     loss.backward();                 // nothing is exchanged here
///     if (local.step()) { … }          // inner.step(); after each 30th also the round
///
/// Gradients are this worker's own: clip them, scale them, accumulate them as without dgc. Learning
/// rates are set on the inner optimizer. Its state (the moments of Adam) stays on this worker, and
/// is part of a checkpoint (dgc/checkpoint.h).
///
/// **Between rounds the parameters differ from worker to worker.** Evaluate, save and compare them
/// right after a round: when step() has returned true, or after synchronize().
///
/// All ranks make the same rounds, but not necessarily the same number of steps in them: a rank
/// whose data ends early calls synchronize() where the others have their H-th step. The group
/// belongs to this object during a round. Parameters are contiguous or not, float, half or bfloat16
/// (with fp32 copies here), on the CPU. What of the model the inner optimizer does not have, or
/// what does not require gradients, is frozen.
///
/// Memory beside the inner optimizer's: 8 bytes a parameter (theta0 and the residual); 4 more with
/// outer momentum. The change is computed in the place of the parameters.
///
/// Errors: as for Exchange. A round that fails is taken back: the parameters become theta0, as
/// after the round before, the change of all its local steps stays in the residual, as in a round
/// that sent nothing, and the group is dead. A change that is NaN or infinite is an error that
/// names the tensor. invalid_argument for parameters and options that cannot be, naming them.
class LocalSteps {
 public:
  using LossClosure = torch::optim::Optimizer::LossClosure;

  /// The parameters and buffers of a module, which are broadcast from rank 0. `inner` has some or
  /// all of these parameters, and outlives this object. A collective call.
  LocalSteps(Group& group, torch::nn::Module& model, torch::optim::Optimizer& inner,
             LocalStepsOptions options = LocalStepsOptions());
  /// The same for parameters with names of the caller's. Give buffers to add_buffers().
  LocalSteps(Group& group, const torch::OrderedDict<std::string, torch::Tensor>& parameters,
             torch::optim::Optimizer& inner, LocalStepsOptions options = LocalStepsOptions());
  ~LocalSteps();
  LocalSteps(const LocalSteps&) = delete;
  LocalSteps& operator=(const LocalSteps&) = delete;

  /// inner.step(closure), and after each H-th call a round. True when there was one. The closure is
  /// for optimizers that need one; its loss is dropped.
  bool step(const LossClosure& closure = nullptr);
  /// A round now, after however many local steps, none included: before evaluation, at the end of
  /// data or of training. Counting begins anew. Where all ranks make the same steps, it is needed
  /// only if local_step() is not 0. A collective call.
  void synchronize();
  /// Local steps since the last round, below H.
  int local_step() const noexcept;
  /// Rounds done so far.
  std::uint64_t rounds() const noexcept;

  /// For a schedule of the outer rate; all ranks set the same.
  void set_outer_lr(double lr);
  double outer_lr() const noexcept;

  /// Buffers that sync_buffers and checkpoints are to take care of; a module's are known already.
  /// Broadcast from rank 0. A collective call.
  void add_buffers(const torch::OrderedDict<std::string, torch::Tensor>& buffers);
  /// Averages floating-point buffers over all ranks, in fp32; others become rank 0's. Rounds do not
  /// do it. A collective call.
  void sync_buffers();

  /// Makes all ranks' parameters those of rank 0, for when they were changed by hand. Not between
  /// rounds. A collective call.
  void broadcast_parameters();
  /// Compares the parameters of all ranks now. Throws Error(diverged), naming the rank; wrong_order
  /// between rounds. A collective call.
  void check_parameters();

  /// Asks all ranks to stop: stop_requested() becomes true on every rank after the same round. May
  /// be called from any thread and from signal handlers.
  void request_stop() noexcept;
  bool stop_requested() const noexcept;
  /// Gives up, when something else has failed: the other ranks get `cause` as their error. The
  /// parameters become theta0, and no other round can follow.
  void abandon(const Error& cause) noexcept;

  /// Of the last round; `step` is its number, `compress` includes computing the change. Its
  /// message_ratio is 32 over the bits a parameter and round.
  const StepStats& stats() const noexcept;
  /// Of the last round, by the parameters that are not frozen, in the order of the report.
  std::span<const TensorStats> tensor_stats() const noexcept;
  /// How each tensor travels, and why. The groups of tensors are those of the inner optimizer.
  SgdReport report() const;
  const LocalStepsOptions& options() const noexcept;
  /// The residual of this rank.
  const State& state_of_rank() const noexcept;
  const Costs& costs() const noexcept;
  torch::optim::Optimizer& inner() noexcept;
  Group& group() noexcept;

  struct Impl;

 private:
  friend struct local::Internals;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dgc
