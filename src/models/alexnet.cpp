#include "models/alexnet.h"

#include "models/check.h"

namespace dgc::models {
namespace {

namespace nn = torch::nn;

constexpr const char* kAlexNet = "AlexNet";

nn::Conv2d convolution(std::int64_t in, std::int64_t out, std::int64_t size, std::int64_t groups) {
  return nn::Conv2d(nn::Conv2dOptions(in, out, size).padding(size / 2).groups(groups));
}

/// Caffe's fillers: normal weights and a constant bias.
template <typename Layer>
void fill(Layer& layer, double deviation, double bias) {
  nn::init::normal_(layer->weight, 0.0, deviation);
  nn::init::constant_(layer->bias, bias);
}

torch::Tensor pool(const torch::Tensor& x) {
  return torch::max_pool2d(x, 3, 2, 0, 1, /*ceil_mode=*/true);
}

torch::Tensor normalise(const torch::Tensor& x) {
  // libtorch divides alpha by the number of channels summed, as Caffe does.
  return nn::functional::local_response_norm(
      x, nn::functional::LocalResponseNormFuncOptions(5).alpha(1e-4).beta(0.75).k(1.0));
}

}  // namespace

AlexNetImpl::AlexNetImpl(std::int64_t classes)
    : conv1_(nn::Conv2dOptions(3, 96, 11).stride(4)),
      conv2_(convolution(96, 256, 5, 2)),
      conv3_(convolution(256, 384, 3, 1)),
      conv4_(convolution(384, 384, 3, 2)),
      conv5_(convolution(384, 256, 3, 2)),
      fc6_(256 * 6 * 6, 4096),
      fc7_(4096, 4096),
      fc8_(4096, classes),
      dropout_(0.5) {
  register_module("conv1", conv1_);
  register_module("conv2", conv2_);
  register_module("conv3", conv3_);
  register_module("conv4", conv4_);
  register_module("conv5", conv5_);
  register_module("fc6", fc6_);
  register_module("fc7", fc7_);
  register_module("fc8", fc8_);
  register_module("dropout", dropout_);
  fill(conv1_, 0.01, 0.0);
  fill(conv2_, 0.01, 0.1);
  fill(conv3_, 0.01, 0.0);
  fill(conv4_, 0.01, 0.1);
  fill(conv5_, 0.01, 0.1);
  fill(fc6_, 0.005, 0.1);
  fill(fc7_, 0.005, 0.1);
  fill(fc8_, 0.01, 0.0);
}

torch::Tensor AlexNetImpl::forward(torch::Tensor x) {
  check_images(kAlexNet, x, 3, 63);
  x = pool(normalise(conv1_(x).relu_()));
  x = pool(normalise(conv2_(x).relu_()));
  x = conv3_(x).relu_();
  x = conv4_(x).relu_();
  x = pool(conv5_(x).relu_());
  x = torch::adaptive_avg_pool2d(x, {6, 6}).flatten(1);
  x = dropout_(fc6_(x).relu_());
  x = dropout_(fc7_(x).relu_());
  return fc8_(x);
}

AlexNet make_alexnet(std::int64_t classes) { return AlexNet(checked_classes(kAlexNet, classes)); }

}  // namespace dgc::models
