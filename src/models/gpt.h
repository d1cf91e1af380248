// A decoder-only transformer, as GPT-2: normalisation before each part, GELU, and the embedding as
// output layer.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <vector>

namespace dgc::models {

struct GptOptions {
  std::int64_t vocabulary = 50'257;
  std::int64_t context = 1'024;  ///< the longest sequence
  std::int64_t width = 768;
  std::int64_t layers = 12;
  std::int64_t heads = 12;  ///< of width / heads each
  /// Positions turn queries and keys (RoFormer) instead of being learned and added. Heads then need
  /// an even width.
  bool rotary = false;
};

/// GPT-2 small: 124,439,808 parameters.
GptOptions gpt2_options();

/// Attention to itself and what came before, and a network of one hidden layer; each is added to
/// its input.
class GptBlockImpl : public torch::nn::Module {
 public:
  explicit GptBlockImpl(const GptOptions& options);
  /// `mask` is (time, time): 0 where attention is allowed, else minus infinity. `turns` is empty
  /// without rotary positions.
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& mask,
                        const std::vector<torch::Tensor>& turns);

  /// Those that write into the sum that runs through all layers.
  std::vector<torch::Tensor> residual_projections() const;

 private:
  torch::Tensor attention(const torch::Tensor& x, const torch::Tensor& mask,
                          const std::vector<torch::Tensor>& turns);

  std::int64_t heads_;
  torch::nn::LayerNorm norm1_, norm2_;
  torch::nn::Linear qkv_, attention_out_, hidden_, out_;
};
TORCH_MODULE(GptBlock);

class GptImpl : public torch::nn::Module {
 public:
  /// Throws Error(invalid_argument) for sizes that do not fit together.
  explicit GptImpl(const GptOptions& options);

  /// Token ids (batch, time) to logits (batch, time, vocabulary). Time is at most the context.
  /// Throws Error(shape_mismatch).
  torch::Tensor forward(const torch::Tensor& tokens);

  const GptOptions& options() const noexcept { return options_; }

 private:
  GptOptions options_;
  torch::nn::Embedding tokens_;
  torch::nn::Embedding positions_ = nullptr;  // where they are learned
  std::vector<GptBlock> blocks_;
  torch::nn::LayerNorm norm_;
  // Constants, which are neither trained nor saved.
  torch::Tensor mask_;
  std::vector<torch::Tensor> turns_;  // cosines and sines, (context, width of a head / 2)
};
TORCH_MODULE(Gpt);

/// Weights come from libtorch's default generator: normal with a deviation of 0.02, and of
/// 0.02 / sqrt(2 · layers) where they write into the residual sum; biases are 0. As GPT-2.
Gpt make_gpt(const GptOptions& options = {});

}  // namespace dgc::models
