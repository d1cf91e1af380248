#include "models/vgg.h"

#include "models/check.h"

namespace dgc::models {
namespace {

namespace nn = torch::nn;

constexpr const char* kVgg = "VGG-16";

/// Configuration D: stages of 3x3 convolutions, each followed by a pooling.
nn::Sequential make_features() {
  struct Stage {
    std::int64_t channels;
    int convolutions;
  };
  constexpr Stage kStages[] = {{64, 2}, {128, 2}, {256, 3}, {512, 3}, {512, 3}};
  nn::Sequential features;
  std::int64_t in = 3;
  for (const auto& stage : kStages) {
    for (int i = 0; i < stage.convolutions; ++i) {
      features->push_back(nn::Conv2d(nn::Conv2dOptions(in, stage.channels, 3).padding(1)));
      features->push_back(nn::ReLU(nn::ReLUOptions().inplace(true)));
      in = stage.channels;
    }
    features->push_back(nn::MaxPool2d(nn::MaxPool2dOptions(2)));
  }
  return features;
}

}  // namespace

VggImpl::VggImpl(std::int64_t classes)
    : features_(make_features()),
      fc6_(512 * 7 * 7, 4096),
      fc7_(4096, 4096),
      fc8_(4096, classes),
      dropout_(0.5) {
  register_module("features", features_);
  register_module("fc6", fc6_);
  register_module("fc7", fc7_);
  register_module("fc8", fc8_);
  register_module("dropout", dropout_);
  // The paper starts from a shallower network that was trained before. He's initialisation makes
  // the deep one learn from the start.
  for (const auto& module : modules(/*include_self=*/false)) {
    if (auto* conv = module->as<nn::Conv2d>()) {
      nn::init::kaiming_normal_(conv->weight, 0.0, torch::kFanOut, torch::kReLU);
      nn::init::zeros_(conv->bias);
    } else if (auto* linear = module->as<nn::Linear>()) {
      nn::init::normal_(linear->weight, 0.0, 0.01);
      nn::init::zeros_(linear->bias);
    }
  }
}

torch::Tensor VggImpl::forward(torch::Tensor x) {
  check_images(kVgg, x, 3, 32);
  x = torch::adaptive_avg_pool2d(features_->forward(x), {7, 7}).flatten(1);
  x = dropout_(fc6_(x).relu_());
  x = dropout_(fc7_(x).relu_());
  return fc8_(x);
}

Vgg make_vgg16(std::int64_t classes) { return Vgg(checked_classes(kVgg, classes)); }

}  // namespace dgc::models
