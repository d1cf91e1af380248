// dgc::Sgd in place of torch::optim::SGD: any libtorch model trains on many workers with Deep
// Gradient Compression. Component torch. docs/libtorch.md shows the three lines that change.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/ordered_dict.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dgc/exchange.h"

namespace dgc {

namespace sgd {
struct Internals;
}

/// How a parameter travels.
enum class Send {
  automatic,  ///< sparse with two dimensions or more, else dense: the paper's rule
  sparse,     ///< the largest entries, by the schedule
  dense,      ///< whole, at every step
};

/// What may differ between groups of parameters. set_lr and get_lr are what libtorch's
/// learning-rate schedulers call.
struct SgdGroupOptions : public torch::optim::OptimizerCloneableOptions<SgdGroupOptions> {
  explicit SgdGroupOptions(double lr) : lr_(lr) {}
  TORCH_ARG(double, lr);
  TORCH_ARG(double, weight_decay) = 0.0;
  TORCH_ARG(Send, send) = Send::automatic;

 public:
  double get_lr() const override { return lr_; }
  void set_lr(const double lr) override { lr_ = lr; }
};

/// Parameters with options of their own. Names, with the prefix before them, are for reports,
/// errors and checkpoints, and differ among all groups.
struct SgdGroup {
  torch::OrderedDict<std::string, torch::Tensor> parameters;
  SgdGroupOptions options;
  std::string prefix = {};
};

/// What to do when a gradient is NaN or infinite on any rank.
enum class NonFinite {
  error,  ///< the step fails on all ranks, naming tensor, index, step and rank
  skip,   ///< the step is dropped on all ranks, nothing is accumulated; for loss scaling
};

/// A setter that can be chained and a getter, as TORCH_ARG makes them, for a member of a part.
#define DGC_PART_ARG(type, part, name) \
 public:                               \
  SgdOptions& name(type value) {       \
    part.name = std::move(value);      \
    return *this;                      \
  }                                    \
  const type& name() const noexcept { return part.name; }

/// Options of the whole optimizer. All ranks give the same. Names as in PyTorch and in the paper.
/// What belongs to compression and exchange is in their own options; the setters write there.
struct SgdOptions {
  explicit SgdOptions(double lr) : lr_(lr) {
    compress.momentum = 0.0f;
    compress.values = ValueType::fp16;
  }

  CompressOptions compress;
  ExchangeOptions exchange;

  /// For parameters that are given without groups; a group has its own.
  TORCH_ARG(double, lr);
  TORCH_ARG(double, weight_decay) = 0.0;

 public:
  /// 0 at first.
  SgdOptions& momentum(double value) {
    compress.momentum = static_cast<float>(value);
    return *this;
  }
  float momentum() const noexcept { return compress.momentum; }
  DGC_PART_ARG(bool, compress, nesterov)
  /// How momentum and sparse sending go together: local is the paper's; global suits many workers;
  /// off, only for comparison, applies momentum after the exchange, to the sum of what was sent:
  /// gradient dropping, the paper's eq. 5.
  DGC_PART_ARG(MomentumCorrection, compress, momentum_correction)
  /// As in version 0.2: true is local, false is off.
  SgdOptions& momentum_correction(bool on) {
    return momentum_correction(on ? MomentumCorrection::local : MomentumCorrection::off);
  }
  /// Momentum factor masking; of local correction only.
  DGC_PART_ARG(bool, compress, masking)
  /// Largest L2 norm of the gradient averaged over all workers; each clips its own by N^-1/2 of it.
  /// 0 turns clipping off. Turns overlap off: the norm is known after backward only.
  DGC_PART_ARG(double, compress, clip_norm)

  /// Share of the entries sent at each step: Schedule::paper(steps) for the paper's warm-up,
  /// Schedule(0.001) for one ratio, Schedule(1.0) for ordinary synchronous SGD.
  DGC_PART_ARG(Schedule, compress, schedule)
  DGC_PART_ARG(Selection, compress, selection)
  /// Of sparse tensors: fp16 at first. Rounding errors stay in the residual.
  DGC_PART_ARG(ValueType, compress, values)
  /// Of tensors that are sent whole.
  DGC_PART_ARG(ValueType, compress, dense_values)
  DGC_PART_ARG(Algorithm, exchange, algorithm)
  /// Values of the dense algorithm: fp32, fp16 or bf16.
  DGC_PART_ARG(ValueType, exchange, dense_transport)

  /// Bytes of gradients that are compressed and exchanged together, the last layers first.
  TORCH_ARG(std::int64_t, bucket_bytes) = std::int64_t{25} << 20;
  /// Compress and exchange while backward goes on.
  TORCH_ARG(bool, overlap) = true;
  /// backward() calls before each step(); their gradients add up. See also Sgd::no_sync.
  TORCH_ARG(int, accumulation_steps) = 1;
  /// Gradients are divided by it before anything else. See also Sgd::set_loss_scale.
  TORCH_ARG(double, loss_scale) = 1.0;
  /// NonFinite::skip turns overlap off: a step can be dropped only before it has begun.
  TORCH_ARG(NonFinite, nonfinite) = NonFinite::error;

  /// Buffers are averaged every so many steps; 0: only when sync_buffers() is called.
  TORCH_ARG(int, buffers_every) = 0;
  /// Parameters are hashed and compared across ranks after the first step and every so many steps;
  /// 0 turns it off. See also Sgd::check_parameters.
  DGC_PART_ARG(int, exchange, check_parameters_every)
  /// Of each worker's compression, including the one that waits for it.
  DGC_PART_ARG(int, compress, threads)
};
#undef DGC_PART_ARG

/// What a step did, on this rank.
struct StepStats {
  std::uint64_t step = 0;  ///< counted from 0; a skipped step is tried again under its number
  bool skipped = false;
  double ratio = 0.0;               ///< asked for by the schedule
  double achieved_ratio = 0.0;      ///< entries sent over entries of the sparse tensors
  std::uint64_t entries = 0;        ///< sent by this worker, dense tensors included
  std::uint64_t message_bytes = 0;  ///< that this worker emitted, once
  std::uint64_t bytes_up = 0;       ///< payload sent to all others
  std::uint64_t bytes_down = 0;
  double message_ratio = 0.0;  ///< 4 bytes a parameter over message_bytes: the paper's measure
  double traffic_ratio = 0.0;  ///< bytes down of a dense fp32 ring over bytes_down; 0 when alone
  double threshold = 0.0;      ///< smallest magnitude sent, averaged over the entries sent sparsely
  double clip_factor = 1.0;    ///< less than 1: clipping fired
  /// L2 norms of this worker's contribution g/N, clipped, and of what it has not yet sent (v).
  /// Of tensors above 64 Ki elements one cache line in 64 is looked at.
  double gradient_norm = 0.0;
  double residual_norm = 0.0;
  /// Seconds. The first three run beside backward where overlap is on; `waiting` is how long step()
  /// then had to wait for them, which is what communication costs.
  double compress = 0.0;
  double encode = 0.0;
  double exchange = 0.0;
  double waiting = 0.0;
  double apply = 0.0;
  double statistics = 0.0;  ///< what these figures cost, most of it beside backward
};

/// How each tensor travels, and why.
struct SgdReport {
  struct Tensor {
    std::string name;
    std::vector<std::string> aliases;  ///< other names of the same tensor (tied weights)
    std::vector<std::int64_t> shape;
    std::string type;  ///< "float", "half", "bfloat16"
    std::string mode;  ///< "sparse", "dense" or "frozen"
    std::string why;
    std::size_t group = 0;  ///< of param_groups()
    int bucket = -1;        ///< in the order of exchange; -1 when frozen
    std::uint64_t elements = 0;
    std::uint64_t k = 0;      ///< entries to send at the current step
    std::uint64_t bytes = 0;  ///< of its frame in the last step
  };
  std::vector<Tensor> tensors;
  std::string overlap;  ///< "on", or "off: " and why
  std::string algorithm;
  std::string schedule;
  int buckets = 0;
  struct Group {
    double lr = 0.0;
    double weight_decay = 0.0;
  };
  std::vector<Group> groups;            ///< as they are now
  std::uint64_t parameters = 0;         ///< trained
  std::uint64_t sparse_parameters = 0;  ///< of these
  /// A table for people.
  std::string text() const;
};

/// Stochastic gradient descent with momentum, Nesterov momentum and weight decay on the average of
/// all workers' gradients, compressed. At ratio 1 it is torch::optim::SGD on the averaged gradient.
///
///     dgc::Sgd optimizer(*group, *model, dgc::SgdOptions(0.1).momentum(0.9));
///     …
///     optimizer.zero_grad();
///     loss.backward();     // compresses and exchanges as gradients come
///     optimizer.step();    // waits for the rest, then changes the parameters
///
/// All ranks make the same calls. Between the first backward() and the end of step() the group
/// belongs to the optimizer, so that each optimizer needs a group of its own. Parameters are
/// contiguous or not, float, half or bfloat16 (with fp32 copies here), on the CPU. Gradients must
/// not be changed between backward() and step() while overlap is on: that is found and refused.
///
/// A parameter whose grad() is undefined on all ranks is left alone (u, v, weight decay); where it
/// is undefined on some, these contribute zero. Sgd::zero_grad leaves gradients undefined;
/// Optimizer::zero_grad zeroes them, and then momentum goes on for unused parameters, as with
/// torch::optim::SGD. Parameters that do not require gradients at construction are frozen.
///
/// Errors: as for Exchange, after which the parameters are as before the step (but for `diverged`,
/// which is found after it) and the group is dead; invalid_argument for parameters and options that
/// cannot be, naming them; wrong_order for a second backward() where one is expected.
class Sgd : public torch::optim::Optimizer {
 public:
  /// All parameters and buffers of a module, which are broadcast from rank 0. A collective call.
  Sgd(Group& group, torch::nn::Module& model, SgdOptions options);
  /// Groups of parameters. Give a module's buffers to add_buffers().
  Sgd(Group& group, std::vector<SgdGroup> groups, SgdOptions options);
  /// Parameters that are called "0", "1", …
  Sgd(Group& group, std::vector<torch::Tensor> parameters, SgdOptions options);
  ~Sgd() override;
  Sgd(const Sgd&) = delete;
  Sgd& operator=(const Sgd&) = delete;

  /// Waits for what backward() has set going, exchanges the rest, and changes the parameters.
  /// `closure` is called first, if there is one, and its loss returned.
  torch::Tensor step(LossClosure closure = nullptr) override;

  /// Gradients become undefined, as in PyTorch from 2.0 on; with false they are set to zero.
  void zero_grad(bool set_to_none = true);

  /// While it lives, backward() only adds to the gradients: for accumulation by hand.
  class NoSync {
   public:
    explicit NoSync(Sgd& optimizer);
    ~NoSync();
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    Sgd& optimizer_;
  };
  [[nodiscard]] NoSync no_sync() { return NoSync(*this); }

  /// Not between backward() and step().
  void set_loss_scale(double scale);
  double loss_scale() const noexcept;

  /// Buffers that sync_buffers and checkpoints are to take care of; a module's are known already.
  /// Broadcast from rank 0. A collective call.
  void add_buffers(const torch::OrderedDict<std::string, torch::Tensor>& buffers);
  /// Averages floating-point buffers over all ranks, in fp32; others become rank 0's. A collective
  /// call.
  void sync_buffers();
  /// Makes all ranks' parameters those of rank 0, for when they were changed by hand. A collective
  /// call.
  void broadcast_parameters();

  /// Compares the parameters of all ranks now: at the end of a run, or before a checkpoint. Throws
  /// Error(diverged), naming the rank. A collective call.
  void check_parameters();

  /// Asks all ranks to stop: stop_requested() becomes true on every rank after the same step. May
  /// be called from any thread and from signal handlers. Where data ends early: zero_grad(),
  /// request_stop(), step().
  void request_stop() noexcept;
  bool stop_requested() const noexcept;

  /// Gives up, when something else than this optimizer has failed: the other ranks, which may be
  /// waiting in the middle of a step, get `cause` as their error. Nothing of the step is applied,
  /// and no other can follow.
  void abandon(const Error& cause) noexcept;

  /// Steps done so far.
  std::uint64_t steps() const noexcept;
  /// Of the last step.
  const StepStats& stats() const noexcept;
  /// Of the last step that sent anything, by the parameters that are not frozen, in the order of
  /// the report.
  std::span<const TensorStats> tensor_stats() const noexcept;
  SgdReport report() const;
  const SgdOptions& options() const noexcept;
  /// u and v of this rank. After a step that failed they hold its gradients, as if it had sent
  /// nothing (but where workers of a host share a state: its mean may never have been known).
  const State& state_of_rank() const noexcept;
  /// What the algorithm `automatic` chooses by.
  const Costs& costs() const noexcept;

  /// The largest ratio at which the exchange is free, or nearly, where a step computes for so many
  /// seconds (forward and backward): see Exchange::free_ratio, and ExchangeOptions::measure.
  double free_ratio(double compute_seconds, double least) const;
  /// At least this share is sent from a step on: see Exchange::raise_ratio.
  void raise_ratio(std::int64_t from_step, double ratio);
  Group& group() noexcept;

  /// libtorch's way of saving an optimizer knows one file and one process: these throw
  /// Error(invalid_argument). Use dgc/checkpoint.h.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

  struct Impl;

 private:
  friend struct sgd::Internals;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dgc
