// The state of any torch::optim::Optimizer as a tensor of bytes, for checkpoints.
#pragma once

#include <torch/optim/optimizer.h>

#include <string>

namespace dgc::sgd {

/// What its own save() writes. The bytes have addresses in them: those of two processes differ also
/// where the states are equal.
torch::Tensor inner_state(const torch::optim::Optimizer& inner);

/// An optimizer that takes a saved state; it is taken back unless it is kept, because load() of an
/// optimizer may stop half-way. Throws Error(state_mismatch) that names `subject`.
class InnerChange {
 public:
  InnerChange(torch::optim::Optimizer& inner, const torch::Tensor& state,
              const std::string& subject);
  ~InnerChange();
  InnerChange(const InnerChange&) = delete;
  InnerChange& operator=(const InnerChange&) = delete;
  void keep() noexcept { before_.reset(); }

 private:
  void take_back() noexcept;

  torch::optim::Optimizer& inner_;
  torch::Tensor before_;
};

}  // namespace dgc::sgd
