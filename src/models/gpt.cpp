// Attention is two batched products and a softmax: queries by keys, with the mask added in the same
// call, and the result by values. Debian's libtorch 1.13 has no fused kernel for it, and with the
// short contexts of a CPU the products of the other layers are what takes the time.
#include "models/gpt.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <string>

#include "dgc/error.h"
#include "models/check.h"

namespace dgc::models {
namespace {

constexpr double kDeviation = 0.02;
constexpr double kRotaryBase = 10'000.0;

const GptOptions& checked(const GptOptions& options) {
  const auto fail = [](const std::string& subject, const std::string& problem) {
    throw Error(ErrorCode::invalid_argument, "gpt", subject, problem);
  };
  if (options.vocabulary < 1 || options.context < 1 || options.width < 1 || options.layers < 1 ||
      options.heads < 1) {
    fail("sizes", "must be at least 1");
  }
  if (options.width % options.heads != 0) {
    fail("heads",
         fmt::format("{} do not divide a width of {} evenly", options.heads, options.width));
  }
  if (options.rotary && options.width / options.heads % 2 != 0) {
    fail("positions", "rotary ones need heads of an even width");
  }
  return options;
}

torch::nn::LayerNorm norm_of(std::int64_t width) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({width}));
}

/// Cosine and sine of position times frequency.
std::vector<torch::Tensor> rotary_turns(const GptOptions& options) {
  const std::int64_t half = options.width / options.heads / 2;
  const torch::Tensor exponents =
      torch::arange(half, torch::kDouble) / static_cast<double>(half) * -std::log(kRotaryBase);
  const torch::Tensor angles =
      torch::outer(torch::arange(options.context, torch::kDouble), exponents.exp());
  return {angles.cos().to(torch::kFloat), angles.sin().to(torch::kFloat)};
}

/// Turns each pair of (…, time, width) by its position's angle; the second half has the partners of
/// the first.
torch::Tensor turned(const torch::Tensor& x, const std::vector<torch::Tensor>& turns) {
  const auto halves = x.chunk(2, -1);
  const torch::Tensor cosine = turns[0].slice(0, 0, x.size(-2));
  const torch::Tensor sine = turns[1].slice(0, 0, x.size(-2));
  return torch::cat({halves[0] * cosine - halves[1] * sine, halves[0] * sine + halves[1] * cosine},
                    -1);
}

}  // namespace

GptBlockImpl::GptBlockImpl(const GptOptions& options)
    : heads_(options.heads),
      norm1_(register_module("norm1", norm_of(options.width))),
      norm2_(register_module("norm2", norm_of(options.width))),
      qkv_(register_module("qkv", torch::nn::Linear(options.width, 3 * options.width))),
      attention_out_(
          register_module("attention_out", torch::nn::Linear(options.width, options.width))),
      hidden_(register_module("hidden", torch::nn::Linear(options.width, 4 * options.width))),
      out_(register_module("out", torch::nn::Linear(4 * options.width, options.width))) {}

std::vector<torch::Tensor> GptBlockImpl::residual_projections() const {
  return {attention_out_->weight, out_->weight};
}

torch::Tensor GptBlockImpl::attention(const torch::Tensor& x, const torch::Tensor& mask,
                                      const std::vector<torch::Tensor>& turns) {
  const std::int64_t batch = x.size(0);
  const std::int64_t time = x.size(1);
  const std::int64_t width = x.size(2);
  const std::int64_t of_head = width / heads_;
  // (3, batch · heads, time, width of a head)
  const torch::Tensor all = qkv_(x)
                                .view({batch, time, 3, heads_, of_head})
                                .permute({2, 0, 3, 1, 4})
                                .reshape({3, batch * heads_, time, of_head});
  torch::Tensor queries = all[0];
  torch::Tensor keys = all[1];
  if (!turns.empty()) {
    queries = turned(queries, turns);
    keys = turned(keys, turns);
  }
  const double scale = 1.0 / std::sqrt(static_cast<double>(of_head));
  const torch::Tensor weights = torch::softmax(
      torch::baddbmm(mask.unsqueeze(0), queries, keys.transpose(1, 2), 1.0, scale), -1);
  const torch::Tensor mixed = torch::bmm(weights, all[2])
                                  .view({batch, heads_, time, of_head})
                                  .transpose(1, 2)
                                  .reshape({batch, time, width});
  return attention_out_(mixed);
}

torch::Tensor GptBlockImpl::forward(const torch::Tensor& x, const torch::Tensor& mask,
                                    const std::vector<torch::Tensor>& turns) {
  const torch::Tensor attended = x + attention(norm1_(x), mask, turns);
  return attended + out_(torch::gelu(hidden_(norm2_(attended)), "tanh"));
}

GptImpl::GptImpl(const GptOptions& options)
    : options_(checked(options)),
      tokens_(register_module("tokens", torch::nn::Embedding(options.vocabulary, options.width))),
      norm_(norm_of(options.width)) {
  if (options.rotary) {
    turns_ = rotary_turns(options);
  } else {
    positions_ = register_module("positions", torch::nn::Embedding(options.context, options.width));
  }
  for (std::int64_t i = 0; i < options.layers; ++i) {
    blocks_.push_back(register_module(fmt::format("block{}", i), GptBlock(options)));
  }
  register_module("norm", norm_);
  mask_ = torch::full({options.context, options.context}, -std::numeric_limits<float>::infinity())
              .triu(1);

  const torch::NoGradGuard no_grad;
  for (const auto& item : named_parameters()) {
    if (item.value().dim() >= 2) {
      torch::nn::init::normal_(item.value(), 0.0, kDeviation);
    } else if (item.key().ends_with("bias")) {
      torch::nn::init::zeros_(item.value());
    }
  }
  // The sum over all layers then varies as much as after one.
  const double shrink = 1.0 / std::sqrt(2.0 * static_cast<double>(options.layers));
  for (const GptBlock& block : blocks_) {
    for (torch::Tensor weight : block->residual_projections()) weight.mul_(shrink);
  }
}

torch::Tensor GptImpl::forward(const torch::Tensor& tokens) {
  if (tokens.dim() != 2 || tokens.size(1) < 1 || tokens.size(1) > options_.context) {
    throw Error(ErrorCode::shape_mismatch, "gpt", "tokens",
                fmt::format("{}, but (batch, time) with a time from 1 to {} is needed",
                            shape_of(tokens), options_.context));
  }
  const std::int64_t time = tokens.size(1);
  torch::Tensor x = tokens_(tokens);
  if (!options_.rotary) x = x + positions_->weight.slice(0, 0, time);
  const torch::Tensor mask = mask_.slice(0, 0, time).slice(1, 0, time);
  for (GptBlock& block : blocks_) x = block->forward(x, mask, turns_);
  return torch::nn::functional::linear(norm_(x), tokens_->weight);
}

GptOptions gpt2_options() { return {}; }

Gpt make_gpt(const GptOptions& options) { return Gpt(options); }

}  // namespace dgc::models
