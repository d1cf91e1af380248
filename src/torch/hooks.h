// Being told of each gradient as backward produces it.
#pragma once

#include <torch/types.h>

#include <functional>
#include <memory>
#include <vector>

namespace dgc::sgd {

/// Calls back for each of some leaf tensors: before its gradient is added to in a backward pass,
/// and after. Tensors that are used twice in a graph get one call, with the sum. An exception of a
/// callback comes out of backward(). Gone with this object.
class GradientHooks {
 public:
  using Callback = std::function<void(std::size_t tensor)>;

  GradientHooks(const std::vector<torch::Tensor>& tensors, Callback before, Callback after);
  ~GradientHooks();
  GradientHooks(const GradientHooks&) = delete;
  GradientHooks& operator=(const GradientHooks&) = delete;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dgc::sgd
