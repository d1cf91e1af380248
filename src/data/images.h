// Labelled images that fit in memory.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace dgc::data {

struct ImageSet {
  std::int64_t count = 0;
  std::int64_t channels = 0;
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::vector<std::string> classes;  ///< names; their number is the number of classes
  std::vector<std::uint8_t> pixels;  ///< count x channels x height x width
  std::vector<std::int64_t> labels;  ///< each in [0, number of classes)

  /// Bytes of one image.
  std::int64_t image_size() const noexcept { return channels * height * width; }

  /// channels x height x width; 0 <= i < count.
  std::span<const std::uint8_t> image(std::int64_t i) const {
    const auto size = static_cast<std::size_t>(image_size());
    return std::span(pixels).subspan(static_cast<std::size_t>(i) * size, size);
  }
};

/// Throws Error(shape_mismatch) when test images are of another size than those of training.
void require_same_shape(const ImageSet& train, const ImageSet& test);

}  // namespace dgc::data
