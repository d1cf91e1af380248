#include "models/cnn.h"

#include "models/check.h"

namespace dgc::models {
namespace {

constexpr const char* kCnn = "CNN";

torch::nn::Conv2d same_convolution(std::int64_t in, std::int64_t out) {
  return torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 3).padding(1));
}

/// With channels last in memory: pooling goes over channels with vectors then, and oneDNN need not
/// reorder what lies between the layers. The parameters themselves stay as everywhere else.
torch::Tensor convolve(const torch::nn::Conv2d& layer, const torch::Tensor& x) {
  const torch::Tensor weight = layer->weight.contiguous(torch::MemoryFormat::ChannelsLast);
  return torch::conv2d(x, weight, layer->bias, 1, 1);
}

/// The same images. With one channel both orders are the same in memory, and only the strides tell
/// libtorch which is meant.
torch::Tensor channels_last(const torch::Tensor& images) {
  return images.squeeze(1).unsqueeze(3).permute({0, 3, 1, 2});
}

}  // namespace

CnnImpl::CnnImpl(std::int64_t classes)
    : conv1_(same_convolution(1, 16)),
      conv2_(same_convolution(16, 32)),
      conv3_(same_convolution(32, 64)),
      fc1_(64 * 7 * 7, 64),
      fc2_(64, classes) {
  register_module("conv1", conv1_);
  register_module("conv2", conv2_);
  register_module("conv3", conv3_);
  register_module("fc1", fc1_);
  register_module("fc2", fc2_);
}

torch::Tensor CnnImpl::forward(torch::Tensor x) {
  check_images(kCnn, x, 1, 28, 28);
  // Pooling first: the maximum of what ReLU leaves is ReLU of the maximum, at a quarter of the
  // cost.
  x = torch::max_pool2d(convolve(conv1_, channels_last(x)), 2).relu_();
  x = torch::max_pool2d(convolve(conv2_, x), 2).relu_();
  x = convolve(conv3_, x).relu_();
  x = fc1_(x.flatten(1)).relu_();
  return fc2_(x);
}

Cnn make_cnn(std::int64_t classes) { return Cnn(checked_classes(kCnn, classes)); }

}  // namespace dgc::models
