// A word-level language model: embedding, LSTM layers, softmax over the vocabulary.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <optional>
#include <tuple>

namespace dgc::models {

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

/// What the paper trains on Penn Treebank: 2 x 1500, tied, dropout 0.65. 51,034,000 parameters,
/// which are the 194.68 MiB of gradients that it tells; untied they would be 66,034,000.
LanguageModelOptions ptb_options();

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
  /// Nothing as `state` means zeros. What comes from an earlier batch must be detached() first.
  std::tuple<torch::Tensor, State> forward(const torch::Tensor& words,
                                           std::optional<State> state = {});

 private:
  torch::nn::Embedding encoder_;
  torch::nn::LSTM lstm_;
  torch::nn::Dropout dropout_;
  Decoder decoder_ = nullptr;
};
TORCH_MODULE(LanguageModel);

/// The same values without the graph that made them: truncated back-propagation through time.
LanguageModelImpl::State detached(const LanguageModelImpl::State& state);

/// Weights come from libtorch's default generator: uniform in ±0.1 for encoder and decoder, whose
/// bias is 0, and ±1/sqrt(hidden) for the LSTM, as in PyTorch's word_language_model.
LanguageModel make_language_model(const LanguageModelOptions& options = {});

}  // namespace dgc::models
