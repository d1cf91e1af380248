// Buffers, such as the running statistics of batch-norm: not trained, and not the same on all
// ranks.
#pragma once

#include <torch/ordered_dict.h>
#include <torch/types.h>

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dgc/group.h"
#include "torch/parameters.h"

namespace dgc::sgd {

/// Copies rank 0's values to all ranks. A collective call.
void broadcast_tensor(Group& group, const torch::Tensor& tensor);

/// The buffers that an optimizer takes care of.
class ModelBuffers {
 public:
  /// `owner` is named by errors.
  ModelBuffers(Group& group, const char* owner) : group_(group), owner_(owner) {}

  /// Checks them, compares them across ranks, and broadcasts them from rank 0. A collective call.
  void add(const torch::OrderedDict<std::string, torch::Tensor>& buffers,
           std::span<const Parameter> parameters);
  /// Averages floating-point buffers over all ranks; others become rank 0's. A collective call.
  void synchronize() const;

  const std::vector<std::pair<std::string, torch::Tensor>>& all() const noexcept { return all_; }

 private:
  Group& group_;
  const char* owner_;
  std::vector<std::pair<std::string, torch::Tensor>> all_;
};

}  // namespace dgc::sgd
