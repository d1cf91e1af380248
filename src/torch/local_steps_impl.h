// The parts of a LocalSteps, for those who look inside: rounds, checkpoints.
#pragma once

#include <torch/types.h>

#include <optional>
#include <span>
#include <vector>

#include "dgc/local_steps.h"
#include "torch/buffers.h"
#include "torch/parameters.h"

namespace dgc {

struct LocalSteps::Impl {
  using Named = torch::OrderedDict<std::string, torch::Tensor>;

  Impl(Group& group, const Named& named, torch::optim::Optimizer& inner, LocalStepsOptions options);

  Group& group;
  torch::optim::Optimizer& inner;
  LocalStepsOptions options;

  std::vector<sgd::Parameter> parameters;
  std::vector<std::size_t> trained;  // tensor t of the exchange is parameters[trained[t]]
  std::uint64_t elements = 0;        // of the trained ones
  sgd::ModelBuffers buffers{group, "LocalSteps"};

  Buckets plan;
  std::optional<Exchange> exchange;
  /// By tensor. theta0: what all ranks had after the last round.
  std::vector<std::vector<float>> anchors;
  /// Outer momentum, the same on all ranks; empty where there is none.
  std::vector<std::vector<float>> momentum;
  /// The change, where the parameter's own memory is not contiguous floats; else empty.
  std::vector<std::vector<float>> apart;

  int local_step = 0;
  double outer_lr = 1.0;
  bool stop = false;
  StepStats stats;
  std::optional<Error> failure;  // what ended a round; none can follow

  sgd::Parameter& parameter(std::size_t tensor) { return parameters[trained[tensor]]; }

  // local_steps.cpp
  void check_options() const;
  void collect(const Named& named);
  std::string describe() const;
  void make_exchange();
  void broadcast_parameters();
  /// Throws Error(wrong_order) where parameters differ from rank to rank.
  void require_round(const char* operation) const;

  // round.cpp
  void round();
  /// Where a tensor's change is computed. Throws Error(wrong_order) if the parameter is not what it
  /// was when this object was made.
  std::span<float> change_of(std::size_t tensor);
  /// theta0 - theta, in the place of theta where that is possible.
  void compute_change(std::size_t tensor);
  void apply(const Collected& collected);
  void apply_with_momentum(const Collected& collected);
  std::vector<std::span<float>> anchor_spans();
  /// theta = theta0.
  void publish(std::size_t tensor);
  void publish_all();
  /// Ends a round that cannot be finished; the first `computed` tensors, in the order of the plan,
  /// are changes already.
  void give_up(const Error& cause, std::size_t computed) noexcept;
};

/// The inside of a LocalSteps, for checkpoints.
struct local::Internals {
  static LocalSteps::Impl& of(LocalSteps& steps) { return *steps.impl_; }
};

}  // namespace dgc
