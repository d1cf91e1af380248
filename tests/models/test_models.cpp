// The models for images that benchmarks and training use: sizes, names, shapes.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>

#include "dgc/error.h"
#include "models/alexnet.h"
#include "models/catalogue.h"
#include "models/cifar_resnet.h"
#include "models/cnn.h"
#include "models/deepspeech.h"
#include "models/lstm.h"
#include "models/resnet.h"
#include "models/vgg.h"
#include "support/model_checks.h"

namespace dgc::models {
namespace {

using Sizes = std::vector<std::int64_t>;

/// The code of the Error that `act` throws; ok for none.
ErrorCode code_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    return error.code();
  }
  return ErrorCode::ok;
}

/// Elements in the model of that name in the list.
std::int64_t listed(const char* name) {
  const Model* model = find_model(name);
  return model == nullptr ? -1 : static_cast<std::int64_t>(model->parameters);
}

/// That the model takes no images of these shapes.
template <typename Model>
void expect_refused(Model& model, const std::vector<Sizes>& shapes) {
  for (const auto& shape : shapes)
    EXPECT_EQ(code_of([&] { model->forward(torch::zeros(shape)); }), ErrorCode::shape_mismatch)
        << shape;
}

TEST(Models, ResNet50) {
  torch::manual_seed(1);
  ResNet50 model = make_resnet50();
  EXPECT_EQ(count(*model), 25'557'032);
  EXPECT_EQ(count(*model), listed("resnet50"));
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
  EXPECT_EQ(logits.sizes(), (Sizes{2, 1000}));
  logits.sum().backward();
  EXPECT_TRUE(all_have_gradients(*model));
  expect_refused(model, {{1, 3, 31, 64}, {3, 64, 64}});
}

TEST(Models, Cnn) {
  torch::manual_seed(1);
  Cnn model = make_cnn();
  EXPECT_EQ(count(*model), 224'714);
  EXPECT_EQ(count(*model), listed("cnn"));
  const torch::Tensor images = torch::randn({16, 1, 28, 28});
  const torch::Tensor labels = torch::arange(16, torch::kLong) % 10;
  EXPECT_EQ(model->forward(images).sizes(), (Sizes{16, 10}));
  const auto loss = [&] { return torch::cross_entropy_loss(model->forward(images), labels); };
  const Losses losses = train_on_one_batch(*model, loss, 30, 0.05);
  EXPECT_TRUE(all_have_gradients(*model));
  EXPECT_LT(losses.last, 0.5 * losses.first);
  expect_refused(model, {{1, 1, 32, 32}, {1, 3, 28, 28}, {28, 28}});
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

TEST(Models, CifarResNet) {
  torch::manual_seed(1);
  EXPECT_EQ(count(*make_cifar_resnet(20)), 269'722);
  EXPECT_EQ(count(*make_cifar_resnet(20)), listed("resnet20"));
  EXPECT_EQ(count(*make_cifar_resnet(56)), 853'018);
  EXPECT_EQ(count(*make_cifar_resnet(56)), listed("resnet56"));
  CifarResNet deep = make_cifar_resnet(110);
  EXPECT_EQ(count(*deep), 1'727'962);
  EXPECT_EQ(count(*deep), listed("resnet110"));
  EXPECT_TRUE(deep->named_parameters().contains("layer3.17.conv2.weight"));
  EXPECT_NEAR(deep->named_parameters()["layer3.5.conv1.weight"].std().item<double>(),
              std::sqrt(2.0 / (64.0 * 9.0)), 1e-3);
  EXPECT_EQ(deep->forward(torch::randn({2, 3, 32, 32})).sizes(), (Sizes{2, 10}));
}

TEST(Models, CifarResNetLearnsGreyImages) {
  torch::manual_seed(1);
  CifarResNet model = make_cifar_resnet(20, 7, 1);
  const torch::Tensor images = torch::randn({16, 1, 28, 28});
  const torch::Tensor labels = torch::arange(16, torch::kLong) % 7;
  EXPECT_EQ(model->forward(images).sizes(), (Sizes{16, 7}));
  const auto loss = [&] { return torch::cross_entropy_loss(model->forward(images), labels); };
  const Losses losses = train_on_one_batch(*model, loss, 15, 0.05);
  EXPECT_TRUE(all_have_gradients(*model));
  EXPECT_LT(losses.last, 0.5 * losses.first);
  expect_refused(model, {{1, 3, 32, 32}, {1, 1, 3, 32}, {0, 1, 32, 32}});
}

TEST(Models, ShortcutOfCifarResNetTakesEveryOtherPixelAndAddsZeros) {
  CifarBlock block(4, 8, 2);
  block->named_parameters()["bn2.weight"].data().zero_();  // what is left is the shortcut
  const torch::Tensor x = torch::rand({2, 4, 7, 7});
  const torch::Tensor y = block->forward(x);
  ASSERT_EQ(y.sizes(), (Sizes{2, 8, 4, 4}));
  EXPECT_TRUE(y.slice(1, 2, 6).equal(x.slice(2, 0, 7, 2).slice(3, 0, 7, 2)));
  EXPECT_EQ(y.slice(1, 0, 2).abs().max().item<float>(), 0.0F);
  EXPECT_EQ(y.slice(1, 6, 8).abs().max().item<float>(), 0.0F);
}

TEST(Models, CifarResNetRefusesOtherDepths) {
  for (const int depth : {-4, 0, 2, 7, 21, 51, 109}) {
    EXPECT_EQ(code_of([&] { make_cifar_resnet(depth); }), ErrorCode::invalid_argument) << depth;
  }
  try {
    make_cifar_resnet(52);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(error.hint().find("50 or 56"), std::string::npos) << error.what();
  }
  EXPECT_EQ(code_of([] { make_cifar_resnet(8, 10, 0); }), ErrorCode::invalid_argument);
}

TEST(Models, AlexNet) {
  torch::manual_seed(1);
  AlexNet model = make_alexnet();
  EXPECT_EQ(count(*model), 60'965'224);
  EXPECT_EQ(count(*model), listed("alexnet"));
  const auto parameters = model->named_parameters();
  EXPECT_EQ(parameters["conv2.weight"].sizes(), (Sizes{256, 48, 5, 5}));
  EXPECT_NEAR(parameters["fc7.weight"].std().item<double>(), 0.005, 1e-5);
  EXPECT_FLOAT_EQ(parameters["conv4.bias"].min().item<float>(), 0.1F);
  EXPECT_EQ(model->forward(torch::randn({1, 3, 63, 64})).sizes(), (Sizes{1, 1000}));
  EXPECT_EQ(model->forward(torch::randn({1, 3, 224, 224})).sizes(), (Sizes{1, 1000}));
  const torch::Tensor logits = model->forward(torch::randn({1, 3, 227, 227}));
  EXPECT_EQ(logits.sizes(), (Sizes{1, 1000}));
  logits.sum().backward();
  EXPECT_TRUE(all_have_gradients(*model));

  const torch::Tensor image = torch::randn({1, 3, 64, 64});
  EXPECT_FALSE(model->forward(image).equal(model->forward(image)));  // dropout
  model->eval();
  EXPECT_TRUE(model->forward(image).equal(model->forward(image)));
  expect_refused(model, {{1, 3, 62, 227}, {1, 3, 227, 62}, {1, 1, 227, 227}});
}

TEST(Models, Vgg16) {
  torch::manual_seed(1);
  Vgg model = make_vgg16();
  EXPECT_EQ(count(*model), 138'357'544);
  EXPECT_EQ(count(*model), listed("vgg16"));
  EXPECT_EQ(model->parameters().size(), 32u);
  {
    const torch::NoGradGuard guard;
    EXPECT_EQ(model->forward(torch::randn({1, 3, 224, 224})).sizes(), (Sizes{1, 1000}));
  }
  const torch::Tensor logits = model->forward(torch::randn({2, 3, 32, 32}));
  EXPECT_EQ(logits.sizes(), (Sizes{2, 1000}));
  logits.sum().backward();
  EXPECT_TRUE(all_have_gradients(*model));
  expect_refused(model, {{1, 3, 224, 31}, {1, 4, 224, 224}});
}

TEST(Models, RefuseNoClasses) {
  const std::function<void()> makers[] = {[] { make_cnn(0); }, [] { make_cifar_resnet(8, 0); },
                                          [] { make_alexnet(0); }, [] { make_resnet50(-1); },
                                          [] { make_vgg16(0); }};
  for (const auto& make : makers) EXPECT_EQ(code_of(make), ErrorCode::invalid_argument);
}

/// What the catalogue says of a model.
void expect_listed(const char* name, const torch::nn::Module& model) {
  const Model& listed = *find_model(name);
  std::int64_t one_dimensional = 0;
  int tensors = 0;
  std::set<const void*> seen;
  for (const torch::Tensor& p : model.parameters()) {
    if (!seen.insert(p.unsafeGetTensorImpl()).second) continue;  // tied
    if (p.dim() > 1) {
      ++tensors;
    } else {
      one_dimensional += p.numel();
    }
  }
  EXPECT_EQ(static_cast<std::int64_t>(listed.parameters), count(model)) << name;
  EXPECT_EQ(static_cast<std::int64_t>(listed.one_dimensional), one_dimensional) << name;
  EXPECT_EQ(listed.tensors, tensors) << name;
}

TEST(Models, AreAsListed) {
  expect_listed("cnn", *make_cnn());
  expect_listed("alexnet", *make_alexnet());
  expect_listed("resnet50", *make_resnet50());
  expect_listed("vgg16", *make_vgg16());
  for (const int depth : {8, 20, 56, 110})
    expect_listed(fmt::format("resnet{}", depth).c_str(), *make_cifar_resnet(depth));
  expect_listed("lstm", *make_language_model(ptb_options()));
  expect_listed("deepspeech", *make_deepspeech());
  DeepSpeechOptions large = librispeech_options();
  expect_listed("deepspeech-1200", *make_deepspeech(large));
  large.convolutions = 3;
  expect_listed("deepspeech-1200-conv3", *make_deepspeech(large));
}

TEST(Models, AreListedOnce) {
  for (const Model& model : catalogue()) {
    EXPECT_FALSE(model.what.empty());
    EXPECT_EQ(find_model(model.name), &model);
    EXPECT_EQ(find_model(model.title), &model);
  }
  EXPECT_EQ(find_model("resnet"), nullptr);
}

}  // namespace
}  // namespace dgc::models
