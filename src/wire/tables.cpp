// The table is the one of least squared error, by Lloyd's method: each magnitude belongs to the
// nearest level, each level is the mean of its magnitudes. On sorted magnitudes with their running
// sums a turn takes a few searches. It begins where levels would be best for a density that falls
// off exponentially (as dense as the cube root of the density), and so needs few turns.
//
// Sums are of doubles in one fixed order, and everything else is a single operation on floats: all
// instruction sets give the same bytes.
#include "wire/tables.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "wire/bits.h"
#include "wire/values.h"

namespace dgc::wire {
namespace {

constexpr std::size_t kMostLevels = 8;
constexpr int kMostTurns = 12;
constexpr std::uint16_t kLargestLevel = 0x7F7F;  // the largest finite bfloat16

using Levels = std::array<float, kMostLevels>;

/// Magnitudes in increasing order, and sums of the first of them.
struct Sorted {
  explicit Sorted(std::span<const float> values) noexcept : count(values.size()) {
    std::array<std::uint32_t, kBlock> bits;
    for (std::size_t i = 0; i < count; ++i) {
      bits[i] = std::bit_cast<std::uint32_t>(values[i]) & 0x7FFFFFFFu;
    }
    // Integers order like the magnitudes, and no two different orders of them exist.
    std::sort(bits.begin(), bits.begin() + static_cast<std::ptrdiff_t>(count));
    sums[0] = 0.0;
    for (std::size_t i = 0; i < count; ++i) {
      magnitudes[i] = std::bit_cast<float>(bits[i]);
      sums[i + 1] = sums[i] + static_cast<double>(magnitudes[i]);
    }
  }
  double mean(std::size_t begin, std::size_t end) const noexcept {
    return (sums[end] - sums[begin]) / static_cast<double>(end - begin);
  }
  /// How many are below `limit`.
  std::size_t below(double limit) const noexcept {
    const auto* const first = magnitudes.data();
    return static_cast<std::size_t>(
        std::partition_point(first, first + count,
                             [limit](float x) { return static_cast<double>(x) < limit; }) -
        first);
  }

  std::size_t count;
  std::array<float, kBlock> magnitudes;
  std::array<double, kBlock + 1> sums;
};

/// The nearest bfloat16 that is finite, and not zero unless `x` is: what has a sign has a size.
std::uint16_t to_level(double x) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(x));
  const std::uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  const auto least = static_cast<std::uint32_t>(bits != 0 ? 1 : 0);
  return static_cast<std::uint16_t>(
      std::clamp(rounded, least, static_cast<std::uint32_t>(kLargestLevel)));
}

float from_level(std::uint16_t level) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(level) << 16);
}

/// Where the magnitudes of each level end, in increasing order.
using Ends = std::array<std::size_t, kMostLevels>;

Ends first_ends(std::size_t count, std::size_t levels) noexcept {
  Ends ends{};
  for (std::size_t j = 0; j < levels; ++j) {
    const double rest =
        static_cast<double>(levels - 1 - j) / static_cast<double>(levels);  // of the levels
    ends[j] = count - static_cast<std::size_t>(rest * rest * rest * static_cast<double>(count));
  }
  return ends;
}

std::array<double, kMostLevels> means_of(const Sorted& sorted, const Ends& ends,
                                         std::size_t levels) noexcept {
  std::array<double, kMostLevels> means{};
  std::size_t begin = 0;
  double last = sorted.magnitudes[0];
  for (std::size_t j = 0; j < levels; ++j) {
    // A level without magnitudes is as the one before: nothing is nearer to it.
    if (ends[j] > begin) last = sorted.mean(begin, ends[j]);
    means[j] = last;
    begin = ends[j];
  }
  return means;
}

void fit(const Sorted& sorted, std::size_t levels, std::byte* table) noexcept {
  Ends ends = first_ends(sorted.count, levels);
  for (int turn = 0; turn < kMostTurns; ++turn) {
    const auto means = means_of(sorted, ends, levels);
    Ends next{};
    for (std::size_t j = 0; j + 1 < levels; ++j) {
      next[j] = sorted.below(0.5 * (means[j] + means[j + 1]));
    }
    next[levels - 1] = sorted.count;
    if (next == ends) break;
    ends = next;
  }
  const auto means = means_of(sorted, ends, levels);
  std::uint16_t last = 0;  // neighbours may change places by the last bit of a sum
  for (std::size_t j = 0; j < levels; ++j) {
    last = std::max(last, to_level(means[j]));
    store(table + 2 * j, last);
  }
}

Levels read_levels(unsigned bits, const std::byte* table) noexcept {
  Levels levels{};
  for (std::size_t j = 0; j < table_levels(bits); ++j) {
    levels[j] = from_level(load<std::uint16_t>(table + 2 * j));
  }
  return levels;
}

}  // namespace

void encode_table(unsigned bits, std::span<const float> values, std::byte* table, std::byte* codes,
                  float* decoded) noexcept {
  const std::size_t count = table_levels(bits);
  fit(Sorted(values), count, table);
  const Levels levels = read_levels(bits, table);
  Levels middles{};  // between a level and the next
  for (std::size_t j = 0; j + 1 < count; ++j) middles[j] = 0.5f * levels[j] + 0.5f * levels[j + 1];
  BitWriter out(codes);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float magnitude = std::fabs(values[i]);
    std::uint32_t level = 0;
    for (std::size_t j = 0; j + 1 < count; ++j) level += magnitude > middles[j] ? 1 : 0;
    const bool negative = std::signbit(values[i]);
    out.put(level | static_cast<std::uint32_t>(negative) << (bits - 1), bits);
    decoded[i] = negative ? -levels[level] : levels[level];
  }
  out.finish();
}

bool valid_table(unsigned bits, const std::byte* table) noexcept {
  std::uint16_t last = 0;
  bool valid = true;
  for (std::size_t j = 0; j < table_levels(bits); ++j) {
    const auto level = load<std::uint16_t>(table + 2 * j);
    valid &= level <= kLargestLevel && level >= last;
    last = level;
  }
  return valid;
}

void decode_table(unsigned bits, const std::byte* table, const std::byte* codes, std::size_t count,
                  float* out) noexcept {
  const Levels levels = read_levels(bits, table);
  std::array<float, 2 * kMostLevels> values;  // of each code
  const std::size_t half = table_levels(bits);
  for (std::size_t j = 0; j < half; ++j) {
    values[j] = levels[j];
    values[half + j] = -levels[j];
  }
  const unsigned mask = (1u << bits) - 1;
  const unsigned per_byte = 8 / bits;
  for (std::size_t i = 0; i < count; ++i) {
    const unsigned byte = std::to_integer<unsigned>(codes[i / per_byte]);
    out[i] = values[byte >> (i % per_byte * bits) & mask];
  }
}

}  // namespace dgc::wire
