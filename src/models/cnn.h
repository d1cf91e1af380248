// A small convolutional network for 28x28 images: MNIST, Fashion-MNIST.
#pragma once

#include <torch/torch.h>

#include <cstdint>

namespace dgc::models {

/// Images (batch, 1, 28, 28) to logits (batch, classes): conv, pool, conv, pool, conv, fc, fc.
/// Neither batch normalisation nor dropout: with one thread each, runs repeat bit for bit.
/// forward throws Error(shape_mismatch) for other images.
class CnnImpl : public torch::nn::Module {
 public:
  explicit CnnImpl(std::int64_t classes);
  torch::Tensor forward(torch::Tensor x);

 private:
  torch::nn::Conv2d conv1_, conv2_, conv3_;
  torch::nn::Linear fc1_, fc2_;
};
TORCH_MODULE(Cnn);

/// 224,714 parameters with 10 classes. Weights come from libtorch's default generator. Throws
/// Error(invalid_argument) for less than one class.
Cnn make_cnn(std::int64_t classes = 10);

}  // namespace dgc::models
