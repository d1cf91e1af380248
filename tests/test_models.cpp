// The models that benchmarks and training use: sizes, names, shapes.
#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "dgc/error.h"
#include "train/models/cnn.h"
#include "train/models/lstm.h"
#include "train/models/resnet.h"

namespace dgc::train {
namespace {

/// Elements of all parameters, those under two names counted once.
std::int64_t count(const torch::nn::Module& model) {
  std::set<const void*> seen;
  std::int64_t total = 0;
  for (const auto& parameter : model.parameters())
    if (seen.insert(parameter.unsafeGetTensorImpl()).second) total += parameter.numel();
  return total;
}

bool all_have_gradients(const torch::nn::Module& model) {
  for (const auto& parameter : model.parameters())
    if (!parameter.grad().defined()) return false;
  return true;
}

TEST(Models, ResNet50) {
  torch::manual_seed(1);
  ResNet50 model = make_resnet50();
  EXPECT_EQ(count(*model), 25'557'032);
  const auto parameters = model->named_parameters();
  EXPECT_EQ(parameters.size(), 161u);
  EXPECT_EQ(parameters.front().key(), "conv1.weight");
  EXPECT_EQ(parameters.back().key(), "fc.bias");
  for (const char* name : {"bn1.bias", "layer1.0.conv1.weight", "layer1.0.downsample.0.weight",
                           "layer2.3.bn3.weight", "layer3.5.conv2.weight", "layer4.2.conv3.weight"})
    EXPECT_TRUE(parameters.contains(name)) << name;
  EXPECT_FALSE(parameters.contains("layer1.1.downsample.0.weight"));
  // He: a standard deviation of sqrt(2 / fan-out).
  EXPECT_NEAR(parameters["layer3.0.conv2.weight"].std().item<double>(),
              std::sqrt(2.0 / (256.0 * 9.0)), 1e-4);
  const torch::Tensor logits = model->forward(torch::randn({2, 3, 64, 64}));
  EXPECT_EQ(logits.sizes(), (std::vector<std::int64_t>{2, 1000}));
  logits.sum().backward();
  EXPECT_TRUE(all_have_gradients(*model));
}

TEST(Models, Cnn) {
  Cnn model = make_cnn();
  EXPECT_EQ(count(*model), 224'714);
  const torch::Tensor logits = model->forward(torch::randn({3, 1, 28, 28}));
  EXPECT_EQ(logits.sizes(), (std::vector<std::int64_t>{3, 10}));
  logits.sum().backward();
  EXPECT_TRUE(all_have_gradients(*model));
}

TEST(Models, CnnIsTheSameForTheSameSeed) {
  torch::manual_seed(7);
  Cnn a = make_cnn();
  torch::manual_seed(7);
  Cnn b = make_cnn();
  const auto first = a->parameters();
  const auto second = b->parameters();
  for (std::size_t i = 0; i < first.size(); ++i) EXPECT_TRUE(first[i].equal(second[i])) << i;
}

TEST(Models, LanguageModel) {
  // Zaremba et al.'s large network, which the paper trains: 66 million.
  LanguageModelOptions large{.embedding = 1500, .hidden = 1500};
  EXPECT_EQ(count(*make_language_model(large)), 66'034'000);

  LanguageModelOptions small{.vocabulary = 50, .embedding = 8, .hidden = 8, .layers = 2};
  const std::int64_t recurrent = 2 * 4 * (8 * 8 + 8 * 8 + 8 + 8);
  EXPECT_EQ(count(*make_language_model(small)), 2 * 50 * 8 + 50 + recurrent);
  small.tied = true;
  small.dropout = 0.5;
  LanguageModel model = make_language_model(small);
  EXPECT_EQ(count(*model), 50 * 8 + 50 + recurrent);
  EXPECT_TRUE(model->named_parameters()["encoder.weight"].is_same(
      model->named_parameters()["decoder.weight"]));

  const torch::Tensor words = torch::randint(50, {5, 3}, torch::kLong);
  auto [logits, state] = model->forward(words);
  EXPECT_EQ(logits.sizes(), (std::vector<std::int64_t>{5, 3, 50}));
  logits.sum().backward();
  EXPECT_TRUE(all_have_gradients(*model));
}

TEST(Models, LanguageModelGoesOnFromItsState) {
  LanguageModel model = make_language_model({.vocabulary = 50, .embedding = 8, .hidden = 16});
  model->eval();
  const torch::Tensor words = torch::randint(50, {6, 3}, torch::kLong);
  const auto whole = std::get<0>(model->forward(words));
  const auto [first, state] = model->forward(words.slice(0, 0, 4));
  const auto rest = std::get<0>(model->forward(words.slice(0, 4, 6), state));
  EXPECT_TRUE(torch::allclose(whole, torch::cat({first, rest}), 1e-5, 1e-6));
}

TEST(Models, LanguageModelRefuses) {
  EXPECT_THROW(make_language_model({.embedding = 8, .hidden = 9, .tied = true}), Error);
  EXPECT_THROW(make_language_model({.layers = 0}), Error);
  EXPECT_THROW(make_language_model({.dropout = 1.0}), Error);
}

}  // namespace
}  // namespace dgc::train
