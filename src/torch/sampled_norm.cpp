// A full pass over v and g would cost a third of the compression itself, only to draw a curve.
#include "torch/sampled_norm.h"

#include <cstddef>

namespace dgc::sgd {
namespace {

constexpr std::size_t kExact = std::size_t{1} << 16;
constexpr std::size_t kLine = 16;  // floats
constexpr std::size_t kStride = 32 * kLine;

double squares(std::span<const float> values) noexcept {
  double sum = 0.0;
  for (const float x : values) sum += static_cast<double>(x) * x;
  return sum;
}

}  // namespace

double sampled_squares(std::span<const float> values, std::uint64_t seed) noexcept {
  if (values.size() <= kExact) return squares(values);
  // Rows of a matrix are often a multiple of the stride: a place of its own in each stride keeps
  // the sample from looking at the same columns.
  std::uint64_t random = seed * 0x9E3779B97F4A7C15u + 1;
  double sum = 0.0;
  std::size_t seen = 0;
  for (std::size_t begin = 0; begin + kStride <= values.size(); begin += kStride) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    sum += squares(values.subspan(begin + (random >> 59) * kLine, kLine));
    seen += kLine;
  }
  return sum * static_cast<double>(values.size()) / static_cast<double>(seen);
}

}  // namespace dgc::sgd
