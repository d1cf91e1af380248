// The transformer: its sizes, that nothing looks ahead, how its weights begin, and that it learns.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "dgc/error.h"
#include "models/gpt.h"
#include "support/model_checks.h"

namespace dgc::models {
namespace {

using Sizes = std::vector<std::int64_t>;

GptOptions tiny_gpt(bool rotary) {
  return {.vocabulary = 20, .context = 12, .width = 16, .layers = 2, .heads = 4, .rotary = rotary};
}

TEST(Gpt, HasThePublishedSize) { EXPECT_EQ(count(*make_gpt(gpt2_options())), 124'439'808); }

TEST(Gpt, CountsByHand) {
  const std::int64_t of_layer =
      2 * 2 * 16 + (16 * 48 + 48) + (16 * 16 + 16) + (16 * 64 + 64) + (64 * 16 + 16);
  EXPECT_EQ(count(*make_gpt(tiny_gpt(false))), 20 * 16 + 12 * 16 + 2 * of_layer + 2 * 16);
  EXPECT_EQ(count(*make_gpt(tiny_gpt(true))), 20 * 16 + 2 * of_layer + 2 * 16);
}

/// With learned (false) and rotary (true) positions.
class GptPositions : public testing::TestWithParam<bool> {};

TEST_P(GptPositions, ALaterTokenDoesNotChangeEarlierLogits) {
  torch::manual_seed(1);
  Gpt model = make_gpt(tiny_gpt(GetParam()));
  const torch::NoGradGuard no_grad;
  const torch::Tensor tokens = torch::randint(20, {3, 12}, torch::kLong);
  const torch::Tensor logits = model->forward(tokens);
  ASSERT_EQ(logits.sizes(), (Sizes{3, 12, 20}));
  for (const std::int64_t at : {0, 5, 11}) {
    torch::Tensor other = tokens.clone();
    other.select(1, at) = (other.select(1, at) + 1).remainder(20);
    const torch::Tensor change = (model->forward(other) - logits).abs().amax({0, 2});
    EXPECT_EQ(change.slice(0, 0, at).sum().item<double>(), 0.0) << at;
    EXPECT_GT(change.slice(0, at).min().item<double>(), 0.0) << at;
  }
  // A shorter sequence has the same logits.
  const torch::Tensor shorter = model->forward(tokens.slice(1, 0, 7));
  EXPECT_TRUE(torch::allclose(shorter, logits.slice(1, 0, 7), 1e-5, 1e-6));
}

TEST_P(GptPositions, OrderMatters) {
  torch::manual_seed(1);
  Gpt model = make_gpt(tiny_gpt(GetParam()));
  const torch::NoGradGuard no_grad;
  for (const auto& item : model->named_parameters()) {
    if (item.value().dim() == 2) item.value().mul_(10.0);  // so that attention is not even
  }
  const torch::Tensor a = torch::tensor({{1, 2, 3}}, torch::kLong);
  const torch::Tensor b = torch::tensor({{2, 1, 3}}, torch::kLong);
  const torch::Tensor change = (model->forward(a) - model->forward(b)).select(1, 2);
  EXPECT_GT(change.abs().max().item<double>(), 1e-3);
}

TEST_P(GptPositions, Learn) {
  torch::manual_seed(1);
  Gpt model = make_gpt(tiny_gpt(GetParam()));
  const torch::Tensor tokens = torch::randint(20, {4, 13}, torch::kLong);
  const auto loss = [&] {
    const torch::Tensor logits = model->forward(tokens.slice(1, 0, 12));
    return torch::nn::functional::cross_entropy(logits.flatten(0, 1),
                                                tokens.slice(1, 1, 13).flatten());
  };
  const Losses losses = train_on_one_batch(*model, loss, 200, 0.1);
  EXPECT_TRUE(all_have_gradients(*model));
  EXPECT_NEAR(losses.first, std::log(20.0), 0.1);
  EXPECT_LT(losses.last, 0.5 * losses.first);
}

INSTANTIATE_TEST_SUITE_P(Both, GptPositions, testing::Bool(),
                         [](const auto& rotary) { return rotary.param ? "Rotary" : "Learned"; });

TEST(Gpt, RotaryAttentionSeesDistancesAlone) {
  torch::manual_seed(1);
  Gpt model = make_gpt(tiny_gpt(true));
  const torch::NoGradGuard no_grad;
  for (const auto& item : model->named_parameters()) {
    if (item.value().dim() == 2) item.value().mul_(10.0);
  }
  const torch::Tensor run = torch::full({1, 12}, 3, torch::kLong);
  const torch::Tensor logits = model->forward(run);
  // Of a sequence of one token, attention is a mean of equal values: every position says the same.
  EXPECT_TRUE(torch::allclose(logits.select(1, 0), logits.select(1, 11), 1e-4, 1e-4));
}

TEST(Gpt, BeginsAsGpt2) {
  torch::manual_seed(1);
  Gpt model = make_gpt({.vocabulary = 500, .context = 64, .width = 128, .layers = 8, .heads = 4});
  const auto parameters = model->named_parameters();
  const auto deviation = [&](const char* name) { return parameters[name].std().item<double>(); };
  EXPECT_NEAR(deviation("tokens.weight"), 0.02, 3e-4);
  EXPECT_NEAR(deviation("positions.weight"), 0.02, 6e-4);
  EXPECT_NEAR(deviation("block3.qkv.weight"), 0.02, 3e-4);
  EXPECT_NEAR(deviation("block3.hidden.weight"), 0.02, 3e-4);
  EXPECT_NEAR(deviation("block3.attention_out.weight"), 0.02 / 4, 1e-4);
  EXPECT_NEAR(deviation("block3.out.weight"), 0.02 / 4, 1e-4);
  for (const auto& item : parameters) {
    if (item.value().dim() != 1) continue;
    const double expected = item.key().ends_with("bias") ? 0.0 : 1.0;
    EXPECT_TRUE(torch::equal(item.value(), torch::full_like(item.value(), expected))) << item.key();
  }
}

TEST(Gpt, Refuses) {
  const auto code_of = [](const std::function<void()>& act) {
    try {
      act();
    } catch (const Error& error) {
      return error.code();
    }
    return ErrorCode::ok;
  };
  for (const GptOptions& bad :
       {GptOptions{.layers = 0}, GptOptions{.heads = 7}, GptOptions{.context = 0},
        GptOptions{.width = 12, .heads = 4, .rotary = true}}) {
    EXPECT_EQ(code_of([&] { make_gpt(bad); }), ErrorCode::invalid_argument);
  }
  Gpt model = make_gpt(tiny_gpt(false));
  for (const Sizes& shape : {Sizes{12}, Sizes{2, 13}, Sizes{2, 0}}) {
    EXPECT_EQ(code_of([&] { model->forward(torch::zeros(shape, torch::kLong)); }),
              ErrorCode::shape_mismatch);
  }
}

}  // namespace
}  // namespace dgc::models
