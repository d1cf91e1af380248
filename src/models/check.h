// What the models refuse, said the same way by all.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <string>

namespace dgc::models {

/// `classes`. Throws Error(invalid_argument) for less than 1.
std::int64_t checked_classes(const std::string& model, std::int64_t classes);

/// Throws Error(shape_mismatch) unless `images` is (batch, channels, height, width) with at least
/// one image, and a height and width from `smallest` to `largest`.
void check_images(const std::string& model, const torch::Tensor& images, std::int64_t channels,
                  std::int64_t smallest, std::int64_t largest = INT64_MAX);

/// "(2, 3, 32, 32)"
std::string shape_of(const torch::Tensor& tensor);

}  // namespace dgc::models
