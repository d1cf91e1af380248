// The parts of an Sgd, for those who look inside: the step, the report, checkpoints.
#pragma once

#include <torch/types.h>

#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "compress/decay.h"
#include "dgc/sgd.h"
#include "torch/buffers.h"
#include "torch/parameters.h"
#include "torch/pipeline.h"

namespace dgc {

struct Sgd::Impl {
  Impl(Group& group, std::span<const SgdGroup> groups, SgdOptions options,
       std::vector<torch::optim::OptimizerParamGroup>& param_groups);

  Group& group;
  SgdOptions options;
  /// Of the optimizer: learning rates and weight decay are read from here at each step.
  std::vector<torch::optim::OptimizerParamGroup>& param_groups;
  std::uint64_t elements = 0;  // of the trained parameters
  std::size_t given = 0;       // parameters in param_groups, to notice when some are added later

  std::vector<sgd::Parameter> parameters;
  std::vector<std::size_t> trained;  // tensor t of the exchange is parameters[trained[t]]
  /// Momentum that is the same on all ranks, by tensor; empty until needed: of weight decay, or of
  /// everything where momentum correction is off.
  std::vector<std::vector<float>> decay;
  sgd::ModelBuffers buffers{group, "Sgd"};

  Buckets plan;
  std::optional<Exchange> exchange;
  std::optional<sgd::Pipeline> pipeline;
  bool stop = false;
  StepStats stats;

  sgd::Parameter& parameter(std::size_t tensor) { return parameters[trained[tensor]]; }
  const sgd::Parameter& parameter(std::size_t tensor) const { return parameters[trained[tensor]]; }
  /// Throws Error(wrong_order) between backward() and step().
  void require_idle(const char* operation) const;
  const SgdGroupOptions& group_of(std::size_t tensor) const;
  /// Why buckets do not run beside backward; empty when they do.
  std::string no_overlap() const;
  void check_options() const;
  /// What ranks have to have in common beside what the exchange compares.
  std::string describe() const;
  void make_exchange();
  void broadcast_parameters();

  void step();
  /// What a step is going to change. Everything that can be wrong with that is found here.
  std::vector<std::span<float>> targets_of_step();
  void apply(const Collected& collected, std::span<const std::span<float>> targets);
  /// The sums as they are, then momentum on them.
  void apply_without_correction(const Collected& collected,
                                std::span<const std::span<float>> targets);
  sgd::Decay decay_of(std::size_t tensor) const;
  bool momentum_is_late() const {
    return options.momentum() != 0.0f && options.momentum_correction() == MomentumCorrection::off;
  }
};

/// The inside of an Sgd, for checkpoints.
struct sgd::Internals {
  static Sgd::Impl& of(Sgd& optimizer) { return *optimizer.impl_; }
};

}  // namespace dgc
