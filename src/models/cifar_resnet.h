// ResNets for small images (He et al., 2015, section 4.2): ResNet-20, 56 and 110 for CIFAR-10.
#pragma once

#include <torch/torch.h>

#include <cstdint>

namespace dgc::models {

/// Two 3x3 convolutions with a shortcut around them. Where the number of channels doubles, the
/// shortcut takes every other pixel and adds channels of zeros (option A): it has no parameters.
class CifarBlockImpl : public torch::nn::Module {
 public:
  CifarBlockImpl(std::int64_t in, std::int64_t out, std::int64_t stride);
  torch::Tensor forward(const torch::Tensor& x);

 private:
  std::int64_t stride_, added_;  // added_: channels of zeros
  torch::nn::Conv2d conv1_, conv2_;
  torch::nn::BatchNorm2d bn1_, bn2_;
};
TORCH_MODULE(CifarBlock);

/// Images (batch, channels, height, width) to logits (batch, classes). Sizes from 4 on work: 32x32
/// as in CIFAR-10, 28x28 as in MNIST. forward throws Error(shape_mismatch) for other images.
class CifarResNetImpl : public torch::nn::Module {
 public:
  /// Throws Error(invalid_argument) unless depth is 6n+2, from 8 on, and the others at least 1.
  CifarResNetImpl(int depth, std::int64_t classes, std::int64_t channels);
  torch::Tensor forward(torch::Tensor x);

 private:
  std::int64_t channels_;
  torch::nn::Conv2d conv1_;
  torch::nn::BatchNorm2d bn1_;
  torch::nn::Sequential layer1_, layer2_, layer3_;
  torch::nn::Linear fc_;
};
TORCH_MODULE(CifarResNet);

/// With 10 classes and 3 channels: 269,722 parameters at depth 20, 853,018 at 56, 1,727,962 at 110.
/// He's initialisation, from libtorch's default generator.
CifarResNet make_cifar_resnet(int depth, std::int64_t classes = 10, std::int64_t channels = 3);

}  // namespace dgc::models
