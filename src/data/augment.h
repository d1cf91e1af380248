// Random and fixed crops of images. All are functions of the picture and the random numbers alone.
#pragma once

#include <cstdint>
#include <span>

#include "base/random.h"
#include "data/jpeg.h"

namespace dgc::data {

/// CIFAR's augmentation, on channels x height x width bytes: `pad` bytes of `fill` on each side, a
/// random crop back to the same size, a mirror image half of the time. `out` has the size of `in`
/// and is not the same memory. Throws Error(invalid_argument) for sizes that do not fit.
void pad_crop_flip(std::span<const std::uint8_t> in, std::span<std::uint8_t> out, int channels,
                   int height, int width, int pad, Random& random, std::uint8_t fill = 0);

/// ImageNet's augmentation: a part of the picture with 8 to 100 % of its area and an aspect ratio
/// of 3/4 to 4/3, resized to size x size (bilinear; averaged where it shrinks), a mirror image half
/// of the time. `out` is 3 x size x size. Throws Error(invalid_argument).
void random_resized_crop(const Picture& picture, int size, Random& random,
                         std::span<std::uint8_t> out);

/// ImageNet's evaluation: resized so that the shorter side is `shorter_side`, of that the size x
/// size in the middle; size <= shorter_side. `out` is 3 x size x size. Throws
/// Error(invalid_argument).
void centre_crop(const Picture& picture, int shorter_side, int size, std::span<std::uint8_t> out);

}  // namespace dgc::data
