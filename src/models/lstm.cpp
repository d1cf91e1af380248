#include "models/lstm.h"

#include <string>

#include "dgc/error.h"

namespace dgc::models {
namespace {

constexpr double kBound = 0.1;  // of the weights of encoder and decoder

const LanguageModelOptions& checked(const LanguageModelOptions& options) {
  const auto fail = [](const std::string& subject, const std::string& problem) {
    throw Error(ErrorCode::invalid_argument, "language model", subject, problem);
  };
  if (options.vocabulary < 1 || options.embedding < 1 || options.hidden < 1 || options.layers < 1)
    fail("sizes", "must be at least 1");
  if (!(options.dropout >= 0.0 && options.dropout < 1.0)) fail("dropout", "must be in [0, 1)");
  if (options.tied && options.embedding != options.hidden)
    fail("tied", "needs as many embedding as hidden units");
  return options;
}

}  // namespace

DecoderImpl::DecoderImpl(torch::Tensor weight)
    : weight_(register_parameter("weight", std::move(weight))),
      bias_(register_parameter("bias", torch::zeros(weight_.size(0)))) {}

torch::Tensor DecoderImpl::forward(const torch::Tensor& x) {
  return torch::nn::functional::linear(x, weight_, bias_);
}

LanguageModelImpl::LanguageModelImpl(const LanguageModelOptions& options)
    : encoder_(checked(options).vocabulary, options.embedding),
      lstm_(torch::nn::LSTMOptions(options.embedding, options.hidden)
                .num_layers(options.layers)
                .dropout(options.layers > 1 ? options.dropout : 0.0)),
      dropout_(options.dropout) {
  torch::nn::init::uniform_(encoder_->weight, -kBound, kBound);
  torch::Tensor weight = encoder_->weight;
  if (!options.tied) {
    weight = torch::empty({options.vocabulary, options.hidden});
    torch::nn::init::uniform_(weight, -kBound, kBound);
  }
  decoder_ = Decoder(weight);
  register_module("encoder", encoder_);
  register_module("lstm", lstm_);
  register_module("dropout", dropout_);
  register_module("decoder", decoder_);
}

std::tuple<torch::Tensor, LanguageModelImpl::State> LanguageModelImpl::forward(
    const torch::Tensor& words, std::optional<State> state) {
  const torch::Tensor embedded = dropout_(encoder_(words));
  auto [hidden, next] = state ? lstm_(embedded, *state) : lstm_(embedded);
  return {decoder_(dropout_(hidden)), next};
}

LanguageModelOptions ptb_options() {
  return {.embedding = 1500, .hidden = 1500, .dropout = 0.65, .tied = true};
}

LanguageModelImpl::State detached(const LanguageModelImpl::State& state) {
  return {std::get<0>(state).detach(), std::get<1>(state).detach()};
}

LanguageModel make_language_model(const LanguageModelOptions& options) {
  return LanguageModel(options);
}

}  // namespace dgc::models
