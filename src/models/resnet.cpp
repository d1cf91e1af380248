#include "models/resnet.h"

#include "models/check.h"

namespace dgc::models {
namespace {

namespace nn = torch::nn;

constexpr const char* kResNet50 = "ResNet-50";
constexpr std::int64_t kExpansion = 4;  // channels out of a block over its width

nn::Conv2d convolution(std::int64_t in, std::int64_t out, std::int64_t size,
                       std::int64_t stride = 1) {
  return nn::Conv2d(nn::Conv2dOptions(in, out, size).stride(stride).padding(size / 2).bias(false));
}

}  // namespace

BottleneckImpl::BottleneckImpl(std::int64_t in, std::int64_t width, std::int64_t stride)
    : conv1_(convolution(in, width, 1, stride)),
      conv2_(convolution(width, width, 3)),
      conv3_(convolution(width, width * kExpansion, 1)),
      bn1_(width),
      bn2_(width),
      bn3_(width * kExpansion) {
  register_module("conv1", conv1_);
  register_module("bn1", bn1_);
  register_module("conv2", conv2_);
  register_module("bn2", bn2_);
  register_module("conv3", conv3_);
  register_module("bn3", bn3_);
  if (stride != 1 || in != width * kExpansion) {
    downsample_ = nn::Sequential(convolution(in, width * kExpansion, 1, stride),
                                 nn::BatchNorm2d(width * kExpansion));
    register_module("downsample", downsample_);
  }
}

torch::Tensor BottleneckImpl::forward(const torch::Tensor& x) {
  torch::Tensor y = bn1_(conv1_(x)).relu_();
  y = bn2_(conv2_(y)).relu_();
  y = bn3_(conv3_(y));
  y += downsample_.is_empty() ? x : downsample_->forward(x);
  return y.relu_();
}

ResNet50Impl::ResNet50Impl(std::int64_t classes)
    : conv1_(convolution(3, 64, 7, 2)),
      bn1_(64),
      layer1_(make_stage(64, 3, 1)),
      layer2_(make_stage(128, 4, 2)),
      layer3_(make_stage(256, 6, 2)),
      layer4_(make_stage(512, 3, 2)),
      fc_(512 * kExpansion, classes) {
  register_module("conv1", conv1_);
  register_module("bn1", bn1_);
  register_module("layer1", layer1_);
  register_module("layer2", layer2_);
  register_module("layer3", layer3_);
  register_module("layer4", layer4_);
  register_module("fc", fc_);
  for (const auto& module : modules(/*include_self=*/false)) {
    if (auto* conv = module->as<nn::Conv2d>())
      nn::init::kaiming_normal_(conv->weight, 0.0, torch::kFanOut, torch::kReLU);
  }
}

nn::Sequential ResNet50Impl::make_stage(std::int64_t width, int blocks, std::int64_t stride) {
  nn::Sequential stage;
  for (int i = 0; i < blocks; ++i) {
    stage->push_back(Bottleneck(in_, width, i == 0 ? stride : 1));
    in_ = width * kExpansion;
  }
  return stage;
}

torch::Tensor ResNet50Impl::forward(torch::Tensor x) {
  check_images(kResNet50, x, 3, 32);
  x = bn1_(conv1_(x)).relu_();
  x = torch::max_pool2d(x, 3, 2, 1);
  x = layer1_->forward(x);
  x = layer2_->forward(x);
  x = layer3_->forward(x);
  x = layer4_->forward(x);
  return fc_(x.mean({2, 3}));
}

ResNet50 make_resnet50(std::int64_t classes) {
  return ResNet50(checked_classes(kResNet50, classes));
}

}  // namespace dgc::models
