// What the tests of models share.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <set>

namespace dgc::models {

/// Elements of all parameters, those under two names counted once.
inline std::int64_t count(const torch::nn::Module& model) {
  std::set<const void*> seen;
  std::int64_t total = 0;
  for (const auto& parameter : model.parameters())
    if (seen.insert(parameter.unsafeGetTensorImpl()).second) total += parameter.numel();
  return total;
}

inline bool all_have_gradients(const torch::nn::Module& model) {
  for (const auto& parameter : model.parameters())
    if (!parameter.grad().defined()) return false;
  return true;
}

struct Losses {
  double first, last;
};

/// Trains on one fixed batch: `loss` computes it.
inline Losses train_on_one_batch(torch::nn::Module& model,
                                 const std::function<torch::Tensor()>& loss, int steps, double lr) {
  torch::optim::SGD sgd(model.parameters(), torch::optim::SGDOptions(lr).momentum(0.9));
  Losses losses{};
  for (int i = 0; i < steps; ++i) {
    sgd.zero_grad();
    const torch::Tensor now = loss();
    now.backward();
    torch::nn::utils::clip_grad_norm_(model.parameters(), 5.0);
    sgd.step();
    losses.last = now.item<double>();
    if (i == 0) losses.first = losses.last;
  }
  return losses;
}

}  // namespace dgc::models
