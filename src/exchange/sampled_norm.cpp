// A full pass over v and g would cost a third of the compression itself, only to draw a curve.
#include "exchange/sampled_norm.h"

#include <cstddef>

namespace dgc::exchange {
namespace {

constexpr std::size_t kExact = std::size_t{1} << 16;
constexpr std::size_t kLine = 16;  // floats
constexpr int kStrideBits = 6;
constexpr std::size_t kStride = kLine << kStrideBits;

double squares(std::span<const float> values) noexcept {
  double sum = 0.0;
  for (const float x : values) sum += static_cast<double>(x) * x;
  return sum;
}

}  // namespace

double sampled_squares(std::span<const float> values, std::uint64_t seed) noexcept {
  if (values.size() <= kExact) return squares(values);
  // Rows of a matrix are often a multiple of the stride: a place of its own in each stride keeps
  // the sample from looking at the same columns. Lines are asked for a batch ahead, or each would
  // cost a whole latency of memory.
  constexpr std::size_t kBatch = 32;
  std::size_t places[kBatch];
  std::uint64_t random = seed * 0x9E3779B97F4A7C15u + 1;
  double sum = 0.0;
  std::size_t seen = 0;
  for (std::size_t begin = 0; begin + kStride <= values.size();) {
    std::size_t count = 0;
    for (; count < kBatch && begin + kStride <= values.size(); ++count, begin += kStride) {
      random = random * 6364136223846793005u + 1442695040888963407u;
      places[count] = begin + (random >> (64 - kStrideBits)) * kLine;
      __builtin_prefetch(values.data() + places[count]);
    }
    for (std::size_t i = 0; i < count; ++i) sum += squares(values.subspan(places[i], kLine));
    seen += count * kLine;
  }
  return sum * static_cast<double>(values.size()) / static_cast<double>(seen);
}

}  // namespace dgc::exchange
