// A small network for tests of checkpoints: batch normalisation has buffers, and the parameter with
// 16 bits has a master copy.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <span>

namespace dgc::test {

template <torch::ScalarType kType>
struct NetWithHalf : torch::nn::Module {
  NetWithHalf() {
    in = register_module("in", torch::nn::Linear(20, 40));
    norm = register_module("norm", torch::nn::BatchNorm1d(40));
    out = register_module("out", torch::nn::Linear(40, 5));
    half = register_parameter("half", torch::ones({5, 5}, kType));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return out(torch::relu(norm(in(x)))).mm(half.to(torch::kFloat));
  }
  torch::nn::Linear in{nullptr}, out{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::Tensor half;
};

/// Its inputs: the same for a step and rank in every process.
inline torch::Tensor batch(int step, int rank, std::int64_t width) {
  torch::Tensor x = torch::empty({6, width});
  std::uint64_t seed = static_cast<std::uint64_t>(step * 31 + rank + 1);
  for (float& value : std::span(x.data_ptr<float>(), static_cast<std::size_t>(x.numel()))) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    value = static_cast<float>(seed >> 40) / static_cast<float>(1 << 24) - 0.5f;
  }
  return x;
}

}  // namespace dgc::test
