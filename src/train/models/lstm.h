// A word-level language model: embedding, LSTM layers, softmax over the vocabulary.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <optional>
#include <tuple>

namespace dgc::train {

struct LanguageModelOptions {
  std::int64_t vocabulary = 10'000;
  std::int64_t embedding = 650;
  std::int64_t hidden = 650;
  std::int64_t layers = 2;
  double dropout = 0.0;  ///< after the embedding, between layers and before the decoder
  /// decoder.weight is encoder.weight: one tensor under two names, which needs embedding == hidden.
  /// parameters() lists it twice, so give torch::optim::SGD one of them only.
  bool tied = false;
};

/// Logits over the vocabulary: weight and bias, where the weight may belong to another module too.
class DecoderImpl : public torch::nn::Module {
 public:
  explicit DecoderImpl(torch::Tensor weight);
  torch::Tensor forward(const torch::Tensor& x);

 private:
  torch::Tensor weight_, bias_;
};
TORCH_MODULE(Decoder);

class LanguageModelImpl : public torch::nn::Module {
 public:
  using State = std::tuple<torch::Tensor, torch::Tensor>;  // h and c

  /// Throws Error(invalid_argument) for sizes that do not fit together.
  explicit LanguageModelImpl(const LanguageModelOptions& options);

  /// Word ids (time, batch) to logits (time, batch, vocabulary), and the state to go on from.
  /// Nothing as `state` means zeros; detach what comes from an earlier batch.
  std::tuple<torch::Tensor, State> forward(const torch::Tensor& words,
                                           std::optional<State> state = {});

 private:
  torch::nn::Embedding encoder_;
  torch::nn::LSTM lstm_;
  torch::nn::Dropout dropout_;
  Decoder decoder_ = nullptr;
};
TORCH_MODULE(LanguageModel);

/// Weights come from libtorch's default generator, uniform as in Zaremba et al. (2014).
LanguageModel make_language_model(const LanguageModelOptions& options = {});

}  // namespace dgc::train
