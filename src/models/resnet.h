// ResNet-50 for ImageNet (He et al., 2015), with torchvision's names and initialisation.
#pragma once

#include <torch/torch.h>

#include <cstdint>

namespace dgc::models {

/// 1x1, 3x3 and 1x1 convolutions with a shortcut around them. The stride is in the first, as in the
/// paper (torchvision has it in the second).
class BottleneckImpl : public torch::nn::Module {
 public:
  BottleneckImpl(std::int64_t in, std::int64_t width, std::int64_t stride);
  torch::Tensor forward(const torch::Tensor& x);

 private:
  torch::nn::Conv2d conv1_, conv2_, conv3_;
  torch::nn::BatchNorm2d bn1_, bn2_, bn3_;
  torch::nn::Sequential downsample_ = nullptr;
};
TORCH_MODULE(Bottleneck);

/// Images (batch, 3, height, width) to logits (batch, classes). Any size from 32 on works;
/// forward throws Error(shape_mismatch) for other images.
class ResNet50Impl : public torch::nn::Module {
 public:
  explicit ResNet50Impl(std::int64_t classes);
  torch::Tensor forward(torch::Tensor x);

 private:
  torch::nn::Sequential make_stage(std::int64_t width, int blocks, std::int64_t stride);

  std::int64_t in_ = 64;  // channels that the next block gets
  torch::nn::Conv2d conv1_;
  torch::nn::BatchNorm2d bn1_;
  torch::nn::Sequential layer1_, layer2_, layer3_, layer4_;
  torch::nn::Linear fc_;
};
TORCH_MODULE(ResNet50);

/// 25,557,032 parameters with 1000 classes. Weights come from libtorch's default generator. Throws
/// Error(invalid_argument) for less than one class.
ResNet50 make_resnet50(std::int64_t classes = 1000);

}  // namespace dgc::models
