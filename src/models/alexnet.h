// AlexNet (Krizhevsky et al., 2012) for ImageNet, as Caffe has it: groups, local response
// normalisation, and the normalisation before the pooling.
#pragma once

#include <torch/torch.h>

#include <cstdint>

namespace dgc::models {

/// Images (batch, 3, height, width) to logits (batch, classes). Made for 227x227. Poolings count a
/// window that is not full, as Caffe's do, so 224x224 gives the same 6x6 features. Other sizes from
/// 63 on are averaged to 6x6. forward throws Error(shape_mismatch) for smaller images. Dropout, so
/// training draws from libtorch's default generator.
class AlexNetImpl : public torch::nn::Module {
 public:
  explicit AlexNetImpl(std::int64_t classes);
  torch::Tensor forward(torch::Tensor x);

 private:
  torch::nn::Conv2d conv1_, conv2_, conv3_, conv4_, conv5_;
  torch::nn::Linear fc6_, fc7_, fc8_;
  torch::nn::Dropout dropout_;
};
TORCH_MODULE(AlexNet);

/// 60,965,224 parameters with 1000 classes. Caffe's initialisation, from libtorch's default
/// generator. Throws Error(invalid_argument) for less than one class.
AlexNet make_alexnet(std::int64_t classes = 1000);

}  // namespace dgc::models
