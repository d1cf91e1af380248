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
  std::int64_t elements = 0;
  const char* owner = "Sgd";      // named by errors
  const char* because = nullptr;  // why it is frozen, where its owner decided so
  std::int64_t version = 0;       // of the tensor, when it and the master were the same

  TensorSpec spec() const;
  std::string why() const;
  /// Values that an update is to change; publish() afterwards. Where somebody wrote to the tensor
  /// since, the master follows it first. Throws Error(wrong_order) if size or type have changed.
  std::span<float> values();
  /// Shows an update to autograd and, where there is a master, to the tensor.
  void publish();
  /// Takes the master from the tensor.
  void reread();
  /// Throws Error(wrong_order): it has another size, type or layout than it had.
  [[noreturn]] void refuse_changed() const;
};

/// Throws Error(invalid_argument), naming the parameter: undefined, not a leaf, not on the CPU, a
/// type that residuals of 32 bits cannot follow, a name used twice, in two groups.
void check_parameters(std::span<const SgdGroup> groups, const char* owner = "Sgd");

/// Parameters of all groups, which were checked, in order, tied ones once.
std::vector<Parameter> collect_parameters(std::span<const SgdGroup> groups);

/// A gradient as contiguous fp32 in the order of its parameter; no copy where it is that already.
torch::Tensor as_contiguous_float(const torch::Tensor& gradient);

}  // namespace dgc::sgd
