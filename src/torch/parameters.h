// The parameters of an optimizer as the exchange sees them.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dgc/sgd.h"

namespace dgc::sgd {

/// A parameter, once, however many names it has.
struct Parameter {
  std::string name;
  std::vector<std::string> aliases;
  torch::Tensor tensor;
  /// fp32, contiguous, where the tensor itself is not: what the exchange changes.
  torch::Tensor master;
  std::size_t group = 0;
  Send send = Send::automatic;
  bool frozen = false;

  TensorSpec spec() const;
  std::string why() const;
  /// Values that an update is to change; publish() afterwards.
  std::span<float> values() const;
  /// Shows an update to autograd and, where there is a master, to the tensor.
  void publish() const;
  /// Takes the master from the tensor, which was changed by hand.
  void reread() const;
};

/// Parameters of all groups, in order, tied ones once. Throws Error(invalid_argument), naming the
/// parameter: not a leaf, not on the CPU, a type that residuals of 32 bits cannot follow, a name
/// used twice.
std::vector<Parameter> collect_parameters(std::span<const SgdGroup> groups);

/// A gradient as contiguous fp32 in the order of its parameter; no copy where it is that already.
torch::Tensor as_contiguous_float(const torch::Tensor& gradient);

}  // namespace dgc::sgd
