// The optimizers of libtorch that tests put inside local steps.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <vector>

namespace dgc::test {

struct InnerOptimizer {
  const char* name;
  std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<torch::Tensor>)> make;
};

template <typename Optimizer, typename Options>
InnerOptimizer inner_optimizer(const char* name, Options options) {
  return {name, [options](std::vector<torch::Tensor> parameters) {
            return std::make_unique<Optimizer>(std::move(parameters), options);
          }};
}

inline std::vector<InnerOptimizer> inner_optimizers() {
  namespace optim = torch::optim;
  return {
      inner_optimizer<optim::SGD>("Sgd", optim::SGDOptions(0.1)),
      inner_optimizer<optim::SGD>("SgdWithMomentum", optim::SGDOptions(0.1).momentum(0.9)),
      inner_optimizer<optim::Adam>("Adam", optim::AdamOptions(0.01)),
      inner_optimizer<optim::AdamW>("AdamW", optim::AdamWOptions(0.01).weight_decay(0.1)),
      inner_optimizer<optim::Adagrad>("Adagrad", optim::AdagradOptions(0.05)),
      inner_optimizer<optim::RMSprop>("RMSprop", optim::RMSpropOptions(0.01).momentum(0.5)),
  };
}

}  // namespace dgc::test
