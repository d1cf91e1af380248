#include "models/cifar_resnet.h"

#include <fmt/format.h>

#include <algorithm>

#include "dgc/error.h"
#include "models/check.h"

namespace dgc::models {
namespace {

namespace nn = torch::nn;

constexpr const char* kCifarResNet = "CIFAR ResNet";

nn::Conv2d convolution(std::int64_t in, std::int64_t out, std::int64_t stride = 1) {
  return nn::Conv2d(nn::Conv2dOptions(in, out, 3).stride(stride).padding(1).bias(false));
}

/// Blocks of each of the three stages.
int blocks_of(int depth) {
  if (depth >= 8 && depth % 6 == 2) return (depth - 2) / 6;
  const int below = std::max(8, (depth - 2) / 6 * 6 + 2);
  const std::string near = depth < 8 ? "8" : fmt::format("{} or {}", below, below + 6);
  throw Error(ErrorCode::invalid_argument, kCifarResNet, "depth",
              fmt::format("{} is not 6n+2, from 8 on", depth), fmt::format("take {}", near));
}

std::int64_t checked_channels(std::int64_t channels) {
  if (channels < 1)
    throw Error(ErrorCode::invalid_argument, kCifarResNet, "channels",
                fmt::format("{}, must be at least 1", channels));
  return channels;
}

nn::Sequential make_stage(std::int64_t in, std::int64_t out, std::int64_t stride, int blocks) {
  nn::Sequential stage(CifarBlock(in, out, stride));
  for (int i = 1; i < blocks; ++i) stage->push_back(CifarBlock(out, out, 1));
  return stage;
}

}  // namespace

CifarBlockImpl::CifarBlockImpl(std::int64_t in, std::int64_t out, std::int64_t stride)
    : stride_(stride),
      added_(out - in),
      conv1_(convolution(in, out, stride)),
      conv2_(convolution(out, out)),
      bn1_(out),
      bn2_(out) {
  register_module("conv1", conv1_);
  register_module("bn1", bn1_);
  register_module("conv2", conv2_);
  register_module("bn2", bn2_);
}

torch::Tensor CifarBlockImpl::forward(const torch::Tensor& x) {
  torch::Tensor y = bn1_(conv1_(x)).relu_();
  y = bn2_(conv2_(y));
  torch::Tensor shortcut = x;
  if (stride_ > 1) shortcut = shortcut.slice(2, 0, {}, stride_).slice(3, 0, {}, stride_);
  if (added_ > 0) {
    const std::int64_t before = added_ / 2;
    shortcut = torch::constant_pad_nd(shortcut, {0, 0, 0, 0, before, added_ - before});
  }
  y += shortcut;
  return y.relu_();
}

CifarResNetImpl::CifarResNetImpl(int depth, std::int64_t classes, std::int64_t channels)
    : channels_(checked_channels(channels)),
      conv1_(convolution(channels, 16)),
      bn1_(16),
      layer1_(make_stage(16, 16, 1, blocks_of(depth))),
      layer2_(make_stage(16, 32, 2, blocks_of(depth))),
      layer3_(make_stage(32, 64, 2, blocks_of(depth))),
      fc_(64, checked_classes(kCifarResNet, classes)) {
  register_module("conv1", conv1_);
  register_module("bn1", bn1_);
  register_module("layer1", layer1_);
  register_module("layer2", layer2_);
  register_module("layer3", layer3_);
  register_module("fc", fc_);
  for (const auto& module : modules(/*include_self=*/false)) {
    if (auto* conv = module->as<nn::Conv2d>())
      nn::init::kaiming_normal_(conv->weight, 0.0, torch::kFanOut, torch::kReLU);
  }
  nn::init::kaiming_normal_(fc_->weight, 0.0, torch::kFanIn, torch::kLinear);
  nn::init::zeros_(fc_->bias);
}

torch::Tensor CifarResNetImpl::forward(torch::Tensor x) {
  check_images(kCifarResNet, x, channels_, 4);
  x = bn1_(conv1_(x)).relu_();
  x = layer1_->forward(x);
  x = layer2_->forward(x);
  x = layer3_->forward(x);
  return fc_(x.mean({2, 3}));
}

CifarResNet make_cifar_resnet(int depth, std::int64_t classes, std::int64_t channels) {
  return CifarResNet(depth, classes, channels);
}

}  // namespace dgc::models
