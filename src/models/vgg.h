// VGG-16 for ImageNet (Simonyan and Zisserman, 2014, configuration D), without normalisation.
#pragma once

#include <torch/torch.h>

#include <cstdint>

namespace dgc::models {

/// Images (batch, 3, height, width) to logits (batch, classes). Made for 224x224. Features of other
/// sizes from 32 on are averaged to 7x7. forward throws Error(shape_mismatch) for smaller images.
/// Dropout, so training draws from libtorch's default generator.
class VggImpl : public torch::nn::Module {
 public:
  explicit VggImpl(std::int64_t classes);
  torch::Tensor forward(torch::Tensor x);

 private:
  torch::nn::Sequential features_;
  torch::nn::Linear fc6_, fc7_, fc8_;
  torch::nn::Dropout dropout_;
};
TORCH_MODULE(Vgg);

/// 138,357,544 parameters with 1000 classes. Weights come from libtorch's default generator.
/// Throws Error(invalid_argument) for less than one class.
Vgg make_vgg16(std::int64_t classes = 1000);

}  // namespace dgc::models
