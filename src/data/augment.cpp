// Crops of pictures, resampled and mirrored.
//
// Resampling is separable, with a triangle filter. Output pixel i of an axis lies at
// c = (i + offset + 1/2) * scale of the source, and takes from source pixel x
//
//   weight = max(0, 1 - |x + 1/2 - c| / max(1, scale)), divided by the sum of all weights
//
// which is linear interpolation where the picture grows, and an average over all pixels where it
// shrinks. Rows go first, and only those that are needed. The random crops are those of He et al.
// (CIFAR) and of Inception (ImageNet: 8 to 100 % of the area, aspect ratio 3/4 to 4/3).
#include "data/augment.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "dgc/error.h"

namespace dgc::data {
namespace {

[[noreturn]] void fail(const char* operation, std::string problem) {
  throw Error(ErrorCode::invalid_argument, operation, "image", std::move(problem));
}

/// How one axis is resampled: output i lies at (i + offset + 0.5) · scale in the source, and reads
/// only positions in [first, first + count).
struct Axis {
  std::int64_t first = 0;
  std::int64_t count = 0;
  double scale = 1;   ///< source pixels per output pixel
  double offset = 0;  ///< output pixels that were cut off before the first one
};

/// The source positions that make up one output position, and their weights.
struct Taps {
  std::int64_t start = 0;
  std::vector<float> weights;  ///< sum is 1
};

/// Triangle filter: linear interpolation where the picture grows; where it shrinks the triangle is
/// as wide as it takes to read every source pixel (antialiasing).
std::vector<Taps> make_taps(const Axis& axis, int size) {
  const double support = std::max(1.0, axis.scale);
  std::vector<Taps> all(static_cast<std::size_t>(size));
  for (int i = 0; i < size; ++i) {
    const double centre = static_cast<double>(axis.first) + (i + axis.offset + 0.5) * axis.scale;
    const std::int64_t last = axis.first + axis.count - 1;
    const auto from =
        std::clamp(static_cast<std::int64_t>(std::floor(centre - support + 0.5)), axis.first, last);
    const auto to =
        std::clamp(static_cast<std::int64_t>(std::floor(centre + support - 0.5)), from, last);
    Taps& taps = all[static_cast<std::size_t>(i)];
    taps.start = from;
    double sum = 0;
    for (std::int64_t x = from; x <= to; ++x) {
      const double distance = std::abs(static_cast<double>(x) + 0.5 - centre) / support;
      const double weight = std::max(0.0, 1.0 - distance);
      taps.weights.push_back(static_cast<float>(weight));
      sum += weight;
    }
    if (sum <= 0) {  // beyond the edge by more than the support
      taps.weights.assign(1, 1.0f);
      continue;
    }
    for (float& weight : taps.weights) weight = static_cast<float>(weight / sum);
  }
  return all;
}

/// Separable: rows first, of only those rows that are needed, then columns.
void resample(const Picture& picture, const Axis& down, const Axis& across, int size, bool mirror,
              std::span<std::uint8_t> out) {
  const std::vector<Taps> rows = make_taps(down, size);
  const std::vector<Taps> columns = make_taps(across, size);
  const std::int64_t top = rows.front().start;
  const std::int64_t bottom =
      rows.back().start + static_cast<std::int64_t>(rows.back().weights.size());
  const auto width = static_cast<std::size_t>(size) * 3;
  std::vector<float> narrow(static_cast<std::size_t>(bottom - top) * width);
  float* to = narrow.data();
  for (std::int64_t y = top; y < bottom; ++y) {
    const std::uint8_t* const line = picture.rgb.data() + y * picture.width * 3;
    for (const Taps& taps : columns) {
      const std::uint8_t* from = line + taps.start * 3;
      float red = 0;
      float green = 0;
      float blue = 0;
      for (const float weight : taps.weights) {
        red += weight * from[0];
        green += weight * from[1];
        blue += weight * from[2];
        from += 3;
      }
      *to++ = red;
      *to++ = green;
      *to++ = blue;
    }
  }
  std::vector<float> line(width);
  const auto plane = static_cast<std::size_t>(size) * static_cast<std::size_t>(size);
  for (std::size_t y = 0; y < rows.size(); ++y) {
    std::fill(line.begin(), line.end(), 0.0f);
    const float* from = narrow.data() + static_cast<std::size_t>(rows[y].start - top) * width;
    for (const float weight : rows[y].weights) {
      for (std::size_t i = 0; i < width; ++i) line[i] += weight * from[i];
      from += width;
    }
    for (std::size_t x = 0; x < columns.size(); ++x) {
      const std::size_t target = y * columns.size() + (mirror ? columns.size() - 1 - x : x);
      for (std::size_t c = 0; c < 3; ++c) {
        const float value = std::clamp(line[3 * x + c] + 0.5f, 0.0f, 255.0f);
        out[c * plane + target] = static_cast<std::uint8_t>(value);
      }
    }
  }
}

void require_sizes(const char* operation, const Picture& picture, int size,
                   std::span<const std::uint8_t> out) {
  if (picture.height <= 0 || picture.width <= 0 ||
      picture.rgb.size() != static_cast<std::size_t>(picture.height * picture.width * 3)) {
    fail(operation, fmt::format("{} x {} pixels with {} bytes", picture.height, picture.width,
                                picture.rgb.size()));
  }
  if (size <= 0 ||
      out.size() != static_cast<std::size_t>(size) * static_cast<std::size_t>(size) * 3)
    fail(operation, fmt::format("{} bytes of output for 3 x {} x {}", out.size(), size, size));
}

}  // namespace

void pad_crop_flip(std::span<const std::uint8_t> in, std::span<std::uint8_t> out, int channels,
                   int height, int width, int pad, Random& random, std::uint8_t fill) {
  if (channels <= 0 || height <= 0 || width <= 0 || pad < 0 || in.size() != out.size() ||
      in.size() != static_cast<std::size_t>(channels) * static_cast<std::size_t>(height) *
                       static_cast<std::size_t>(width)) {
    fail("pad_crop_flip", fmt::format("{} bytes to {} for {} x {} x {} padded by {}", in.size(),
                                      out.size(), channels, height, width, pad));
  }
  const auto choices = static_cast<std::uint64_t>(pad) * 2 + 1;
  const int down = static_cast<int>(random.below(choices)) - pad;
  const int across = static_cast<int>(random.below(choices)) - pad;
  const bool mirror = random.coin();
  std::uint8_t* to = out.data();
  for (int c = 0; c < channels; ++c) {
    for (int y = 0; y < height; ++y) {
      const int row = y + down;
      const bool inside = row >= 0 && row < height;
      // Formed only for rows that exist: a pointer before the array is undefined.
      const std::uint8_t* const from =
          inside ? in.data() + (std::int64_t{c} * height + row) * width : nullptr;
      for (int x = 0; x < width; ++x) {
        const int column = (mirror ? width - 1 - x : x) + across;
        *to++ = inside && column >= 0 && column < width ? from[column] : fill;
      }
    }
  }
}

void random_resized_crop(const Picture& picture, int size, Random& random,
                         std::span<std::uint8_t> out) {
  require_sizes("random_resized_crop", picture, size, out);
  constexpr double kLeastArea = 0.08;
  constexpr double kWidest = 4.0 / 3.0;
  const auto height = static_cast<double>(picture.height);
  const auto width = static_cast<double>(picture.width);
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  // Ten tries find a part that fits; a picture of an extreme shape gets its largest allowed middle.
  for (int attempt = 0; attempt < 10 && rows == 0; ++attempt) {
    const double area = height * width * (kLeastArea + (1 - kLeastArea) * random.uniform());
    const double aspect = std::pow(kWidest, 2 * random.uniform() - 1);  // uniform in its logarithm
    const auto w = static_cast<std::int64_t>(std::lround(std::sqrt(area * aspect)));
    const auto h = static_cast<std::int64_t>(std::lround(std::sqrt(area / aspect)));
    if (w < 1 || h < 1 || w > picture.width || h > picture.height) continue;
    rows = h;
    columns = w;
  }
  std::int64_t top = 0;
  std::int64_t left = 0;
  if (rows > 0) {
    top = static_cast<std::int64_t>(
        random.below(static_cast<std::uint64_t>(picture.height - rows + 1)));
    left = static_cast<std::int64_t>(
        random.below(static_cast<std::uint64_t>(picture.width - columns + 1)));
  } else {
    rows = std::clamp<std::int64_t>(std::lround(width * kWidest), 1, picture.height);
    columns = std::clamp<std::int64_t>(std::lround(height * kWidest), 1, picture.width);
    top = (picture.height - rows) / 2;
    left = (picture.width - columns) / 2;
  }
  const bool mirror = random.coin();
  resample(picture, {top, rows, static_cast<double>(rows) / size, 0},
           {left, columns, static_cast<double>(columns) / size, 0}, size, mirror, out);
}

void centre_crop(const Picture& picture, int shorter_side, int size, std::span<std::uint8_t> out) {
  require_sizes("centre_crop", picture, size, out);
  if (size > shorter_side)
    fail("centre_crop", fmt::format("{} of a side of {}", size, shorter_side));
  const std::int64_t shorter = std::min(picture.height, picture.width);
  const auto axis = [&](std::int64_t length) -> Axis {
    const std::int64_t resized = length * shorter_side / shorter;  // rounded down, as usual
    const std::int64_t cut = (resized - size + 1) / 2;
    return {0, length, static_cast<double>(length) / static_cast<double>(resized),
            static_cast<double>(cut)};
  };
  resample(picture, axis(picture.height), axis(picture.width), size, false, out);
}

}  // namespace dgc::data
