// On the AccumulateGrad node of each tensor, as DistributedDataParallel has them: hooks on the
// tensor itself would see the parts of a sum, and run before it is in grad().
#include "torch/hooks.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

namespace dgc::sgd {
namespace {

using torch::autograd::variable_list;
// A std::shared_ptr in libtorch 1.13, an intrusive_ptr in 2.13.
using NodePointer = decltype(torch::autograd::impl::grad_accumulator(torch::Tensor()));

struct Before final : torch::autograd::FunctionPreHook {
  Before(const GradientHooks::Callback& f, std::size_t t) : call(f), tensor(t) {}
  variable_list operator()(const variable_list& gradients) override {
    call(tensor);
    return gradients;
  }
  const GradientHooks::Callback& call;
  std::size_t tensor;
};

struct After final : torch::autograd::FunctionPostHook {
  After(const GradientHooks::Callback& f, std::size_t t) : call(f), tensor(t) {}
  variable_list operator()(const variable_list& outputs, const variable_list&) override {
    call(tensor);
    return outputs;
  }
  const GradientHooks::Callback& call;
  std::size_t tensor;
};

}  // namespace

struct GradientHooks::Impl {
  Callback before;
  Callback after;
  struct Hooked {
    NodePointer node;  // tensors hold it weakly
    const void* before;
    std::uintptr_t after;
  };
  std::vector<Hooked> hooked;
};

GradientHooks::GradientHooks(const std::vector<torch::Tensor>& tensors, Callback before,
                             Callback after)
    : impl_(std::make_unique<Impl>()) {
  impl_->before = std::move(before);
  impl_->after = std::move(after);
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    auto node = torch::autograd::impl::grad_accumulator(tensors[t]);
    auto first = std::make_unique<Before>(impl_->before, t);
    const void* const key = first.get();
    node->add_pre_hook(std::move(first));
    const auto last = node->add_post_hook(std::make_unique<After>(impl_->after, t));
    impl_->hooked.push_back({std::move(node), key, last});
  }
}

GradientHooks::~GradientHooks() {
  for (auto& [node, before, after] : impl_->hooked) {
    auto& hooks = node->pre_hooks();
    hooks.erase(std::remove_if(hooks.begin(), hooks.end(),
                               [key = before](const auto& hook) { return hook.get() == key; }),
                hooks.end());
    node->del_post_hook(after);
  }
}

}  // namespace dgc::sgd
