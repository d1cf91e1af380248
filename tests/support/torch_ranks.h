// What tests of dgc::Sgd share: workers as threads, small models, comparing parameters.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <mutex>
#include <vector>

#include "dgc/sgd.h"
#include "support/ranks.h"

namespace dgc::test {

using Tensors = std::vector<torch::Tensor>;

/// Runs `work` on a thread for each rank, with one thread of libtorch's each, and lets no Error
/// pass.
inline void run_workers(int size, const std::function<void(Group&)>& work) {
  torch::set_num_threads(1);
  const auto errors = run_ranks(size, std::chrono::seconds(30), work);
  for (const auto& error : errors) {
    if (error) ADD_FAILURE() << error->what();
  }
}

inline Tensors copies_of(const Tensors& tensors) {
  Tensors copies;
  for (const auto& t : tensors) copies.push_back(t.detach().clone());
  return copies;
}

/// Norm of the difference over the norm of `expected`, all tensors together.
inline double relative_difference(const Tensors& actual, const Tensors& expected) {
  double difference = 0.0;
  double norm = 0.0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const auto a = actual[i].detach().to(torch::kDouble);
    const auto e = expected[i].detach().to(torch::kDouble);
    difference += (a - e).square().sum().item<double>();
    norm += e.square().sum().item<double>();
  }
  return std::sqrt(difference / norm);
}

inline bool identical(const Tensors& a, const Tensors& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!torch::equal(a[i].detach(), b[i].detach())) return false;
  }
  return true;
}

struct SmallCnn : torch::nn::Module {
  SmallCnn() {
    conv1 = register_module("conv1", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 8, 3)));
    conv2 =
        register_module("conv2", torch::nn::Conv2d(torch::nn::Conv2dOptions(8, 16, 3).stride(2)));
    fc = register_module("fc", torch::nn::Linear(16 * 4 * 4, 10));
  }
  torch::Tensor forward(torch::Tensor x) {
    x = torch::relu(conv1(x));
    x = torch::relu(conv2(x));
    return fc(x.flatten(1));
  }
  torch::nn::Conv2d conv1{nullptr}, conv2{nullptr};
  torch::nn::Linear fc{nullptr};
};

/// Words in, words out, with tied weights.
struct SmallLstm : torch::nn::Module {
  SmallLstm() {
    embedding = register_module("embedding", torch::nn::Embedding(50, 24));
    lstm = register_module(
        "lstm", torch::nn::LSTM(torch::nn::LSTMOptions(24, 24).num_layers(2).batch_first(true)));
    bias = register_parameter("bias", torch::zeros(50));
  }
  torch::Tensor forward(const torch::Tensor& words) {
    const auto hidden = std::get<0>(lstm(embedding(words)));
    return (torch::matmul(hidden, embedding->weight.t()) + bias).flatten(0, 1);
  }
  torch::nn::Embedding embedding{nullptr};
  torch::nn::LSTM lstm{nullptr};
  torch::Tensor bias;
};

}  // namespace dgc::test
