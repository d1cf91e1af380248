// The codings themselves, block by block; values.h has the scheme and docs/format.md, "Values", the
// bits. (The paper sends 32-bit values.)
#include "wire/values.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cfloat>
#include <cmath>

#include "wire/bits.h"
#include "wire/tables.h"

namespace dgc::wire {
namespace {

constexpr int kMinExponent = -128;
// 65504 · 2^112 is still finite in float; 2^113 would not be.
constexpr int kMaxExponent = 112;
constexpr auto kMaxHalfBits = std::bit_cast<std::int32_t>(65504.0f);
// 127 · (FLT_MAX / 128) is finite.
constexpr float kMaxInt8Scale = FLT_MAX / 128.0f;

/// 2^e for e in [-149, 127]; subnormal results are exact too.
float power_of_two(int e) noexcept {
  const bool normal = e >= -126;
  return std::bit_cast<float>(normal ? static_cast<std::uint32_t>(e + 127) << 23
                                     : std::uint32_t{1} << (e + 149));
}

/// Round to nearest even; magnitudes beyond the largest half become that. No branch, and integers
/// where floats would need one, so that loops over it vectorise.
std::uint16_t to_half(float x) noexcept {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const auto magnitude = static_cast<std::uint32_t>(
      std::min(static_cast<std::int32_t>(bits & 0x7FFFFFFFu), kMaxHalfBits));
  // Below 2^-14 the half is subnormal, with steps of 2^-24: the step of floats in [0.5, 1).
  const float aligned = std::bit_cast<float>(magnitude) + 0.5f;
  const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(aligned) - 0x3F000000u;
  const std::uint32_t rounded = magnitude + 0xFFFu + ((magnitude >> 13) & 1u);
  const std::uint32_t normal = (rounded - (112u << 23)) >> 13;
  return static_cast<std::uint16_t>(sign | (magnitude < 0x38800000u ? subnormal : normal));
}

/// Exact. A half shifted into place is a float of the same digits, 2^112 too small.
float from_half(std::uint16_t half) noexcept {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000u) << 16;
  const std::uint32_t magnitude = static_cast<std::uint32_t>(half & 0x7FFFu) << 13;
  return std::bit_cast<float>(sign | magnitude) * 0x1p112f;
}

std::uint16_t to_bf16(float x) noexcept {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  // Values that would round to infinity saturate; the difference stays in the residual.
  const bool overflow = (rounded & 0x7FFFu) >= 0x7F80u;
  return static_cast<std::uint16_t>(overflow ? (rounded & 0x8000u) | 0x7F7Fu : rounded);
}

float from_bf16(std::uint16_t x) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(x) << 16);
}

/// Scale exponent that brings the largest magnitude to [2^14, 2^15): 29 binary orders below it
/// keep full precision.
int half_exponent(float block_max) noexcept {
  if (block_max == 0.0f) return 0;
  return std::clamp(std::ilogb(block_max) - 14, kMinExponent, kMaxExponent);
}

/// The factor 2^-e in two parts, since 2^128 is not a float. Both products are exact where the half
/// is not zero.
struct HalfScale {
  explicit HalfScale(int e) noexcept
      : first(power_of_two(-e / 2)), second(power_of_two(-e - -e / 2)), back(power_of_two(e)) {}
  std::uint16_t encode(float x) const noexcept { return to_half(x * first * second); }
  float decode(std::uint16_t half) const noexcept { return from_half(half) * back; }

  float first;
  float second;
  float back;
};

float int8_scale(float block_max) noexcept {
  // A block of denormals can make max/127 round to zero; the smallest float still orders it.
  if (block_max == 0.0f) return 0.0f;
  return std::clamp(block_max / 127.0f, FLT_TRUE_MIN, kMaxInt8Scale);
}

int to_int8(float x, float scale) noexcept {
  if (scale == 0.0f) return 0;
  // Adding 1.5 · 2^23 leaves no room for a fraction: round to nearest even, without a call.
  constexpr float kNoFraction = 0x1.8p23f;
  const float near = std::clamp(x / scale, -127.0f, 127.0f);
  return static_cast<int>((near + kNoFraction) - kNoFraction);
}

float max_magnitude(std::span<const float> values) noexcept {
  return magnitudes_of(values).largest;
}

float mean_magnitude(std::span<const float> values) noexcept {
  double sum = 0.0;
  for (const float v : values) sum += std::fabs(static_cast<double>(v));
  return values.empty() ? 0.0f : static_cast<float>(sum / static_cast<double>(values.size()));
}

/// Whether any value has all bits of `kExponent` set, the lowest of which is kOne: NaN or infinity.
/// Adding one to such an exponent carries into the sign's place; no comparison, no branch.
template <typename T, T kExponent, T kOne>
bool has_full_exponent(const std::byte* data, std::size_t count) noexcept {
  T carry = 0;
  for (std::size_t i = 0; i < count; ++i) {
    carry |= static_cast<T>((load<T>(data + i * sizeof(T)) & kExponent) + kOne);
  }
  return carry >> (8 * sizeof(T) - 1) != 0;
}

std::size_t scale_bytes(ValueType type) noexcept {
  switch (type) {
    case ValueType::fp16:
      return 1;
    case ValueType::int8:
    case ValueType::sign:
      return 4;
    case ValueType::table2:
    case ValueType::table4:
      return 2 * table_levels(table_bits(type));
    default:
      return 0;
  }
}

/// NaN fails every comparison; -0 would give zeros an arbitrary sign.
bool valid_scale(float scale, float largest) noexcept {
  return scale <= largest && !std::signbit(scale);
}

}  // namespace

Magnitudes magnitudes_of(std::span<const float> values) noexcept {
  // As integers, which order like the floats, and whose largest compilers find in vectors.
  std::int32_t smallest = 0x7F800000;
  std::int32_t largest = 0;
  for (const float value : values) {
    const auto bits = static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(value) & 0x7FFFFFFFu);
    smallest = std::min(smallest, bits);
    largest = std::max(largest, bits);
  }
  return {std::bit_cast<float>(smallest), std::bit_cast<float>(largest)};
}

bool all_finite(std::span<const float> values) noexcept {
  // One more than the largest exponent carries into the sign's place.
  std::uint32_t carry = 0;
  for (const float value : values) {
    carry |= (std::bit_cast<std::uint32_t>(value) & 0x7F800000u) + 0x00800000u;
  }
  return carry >> 31 == 0;
}

std::size_t value_bytes(ValueType type, std::size_t entries) noexcept {
  const std::size_t scales = blocks_of(entries) * scale_bytes(type);
  switch (type) {
    case ValueType::fp32:
      return entries * 4;
    case ValueType::fp16:
    case ValueType::bf16:
      return scales + entries * 2;
    case ValueType::int8:
      return scales + entries;
    case ValueType::sign:
      return scales + (entries + 7) / 8;
    case ValueType::table2:
    case ValueType::table4:
      return scales + (entries * table_bits(type) + 7) / 8;
  }
  return 0;
}

bool vanishes(ValueType type, float value, float block_max) noexcept {
  switch (type) {
    case ValueType::fp16: {
      const HalfScale scale(half_exponent(block_max));
      return scale.decode(scale.encode(value)) == 0.0f;
    }
    case ValueType::bf16:
      return (to_bf16(value) & 0x7FFFu) == 0;
    case ValueType::int8:
      return to_int8(value, int8_scale(block_max)) == 0;
    default:
      return value == 0.0f;
  }
}

Vanishing::Vanishing(ValueType type, float block_max) noexcept
    : type_(type), block_max_(block_max) {
  // Half of the least value that there is. Roundings on the way there move it by a few last bits.
  float half = 0.0f;
  if (type == ValueType::int8) half = 0.5f * int8_scale(block_max);
  if (type == ValueType::fp16) half = std::ldexp(1.0f, half_exponent(block_max) - 25);
  if (type == ValueType::bf16) half = FLT_MIN;
  constexpr float kRoundings = 1e-6f;
  // Denormals are rounded by more than that: each of them is looked at.
  const bool normal = half > 2.0f * FLT_MIN;
  goes_ = normal ? half * (1.0f - kRoundings) : 0.0f;
  survives_ = normal ? half * (1.0f + kRoundings) : 4.0f * half;
}

void encode_values(ValueType type, std::span<const float> values, std::byte* out,
                   float* decoded) noexcept {
  std::byte* const scales = out;
  std::byte* const data = out + blocks_of(values.size()) * scale_bytes(type);
  if (type == ValueType::sign) std::fill_n(data, (values.size() + 7) / 8, std::byte{0});

  for (std::size_t begin = 0, block = 0; begin < values.size(); begin += kBlock, ++block) {
    const auto part = values.subspan(begin, std::min(kBlock, values.size() - begin));
    switch (type) {
      case ValueType::fp32:
        if (decoded != nullptr) std::copy(part.begin(), part.end(), decoded + begin);
        std::memcpy(data + begin * 4, part.data(), part.size_bytes());
        break;
      case ValueType::fp16: {
        const int exponent = half_exponent(max_magnitude(part));
        store(scales + block, static_cast<std::int8_t>(exponent));
        const HalfScale scale(exponent);
        // By way of an array that nothing else can point to: so these loops vectorise.
        std::array<std::uint16_t, kBlock> halves;
        for (std::size_t i = 0; i < part.size(); ++i) halves[i] = scale.encode(part[i]);
        for (std::size_t i = 0; i < part.size(); ++i) decoded[begin + i] = scale.decode(halves[i]);
        std::memcpy(data + begin * 2, halves.data(), part.size() * 2);
        break;
      }
      case ValueType::bf16:
        for (std::size_t i = 0; i < part.size(); ++i) {
          const std::uint16_t code = to_bf16(part[i]);
          store(data + (begin + i) * 2, code);
          decoded[begin + i] = from_bf16(code);
        }
        break;
      case ValueType::int8: {
        const float scale = int8_scale(max_magnitude(part));
        store(scales + block * 4, scale);
        for (std::size_t i = 0; i < part.size(); ++i) {
          const int code = to_int8(part[i], scale);
          store(data + begin + i, static_cast<std::int8_t>(code));
          decoded[begin + i] = static_cast<float>(code) * scale;
        }
        break;
      }
      case ValueType::sign: {
        // The mean magnitude minimises the squared error that stays behind in the residual.
        const float scale = mean_magnitude(part);
        store(scales + block * 4, scale);
        for (std::size_t i = 0; i < part.size(); ++i) {
          const bool negative = std::signbit(part[i]);
          const std::size_t bit = begin + i;
          if (negative) data[bit >> 3] |= std::byte{1} << (bit & 7);
          decoded[bit] = negative ? -scale : scale;
        }
        break;
      }
      case ValueType::table2:
      case ValueType::table4:
        encode_table(table_bits(type), part, scales + block * scale_bytes(type),
                     data + begin * table_bits(type) / 8, decoded + begin);
        break;
    }
  }
}

ValueReader::ValueReader(ValueType type, const std::byte* section, std::size_t entries) noexcept
    : type_(type),
      scales_(section),
      data_(section + blocks_of(entries) * scale_bytes(type)),
      entries_(entries) {}

ErrorCode ValueReader::validate() const noexcept {
  const std::size_t blocks = blocks_of(entries_);
  bool bad_scale = false;
  bool bad_value = false;
  switch (type_) {
    case ValueType::fp32:
      bad_value = has_full_exponent<std::uint32_t, 0x7F800000u, 0x00800000u>(data_, entries_);
      break;
    case ValueType::fp16:
      for (std::size_t b = 0; b < blocks; ++b)
        bad_scale |= load<std::int8_t>(scales_ + b) > kMaxExponent;
      bad_value = has_full_exponent<std::uint16_t, 0x7C00u, 0x0400u>(data_, entries_);
      break;
    case ValueType::bf16:
      bad_value = has_full_exponent<std::uint16_t, 0x7F80u, 0x0080u>(data_, entries_);
      break;
    case ValueType::int8:
      for (std::size_t b = 0; b < blocks; ++b)
        bad_scale |= !valid_scale(load<float>(scales_ + b * 4), kMaxInt8Scale);
      for (std::size_t i = 0; i < entries_; ++i) bad_value |= load<std::int8_t>(data_ + i) == -128;
      if (bad_value && !bad_scale) return ErrorCode::reserved_bits;
      break;
    case ValueType::sign:
      for (std::size_t b = 0; b < blocks; ++b)
        bad_scale |= !valid_scale(load<float>(scales_ + b * 4), FLT_MAX);
      if (entries_ % 8 != 0 &&
          std::to_integer<unsigned>(data_[entries_ / 8]) >> (entries_ % 8) != 0) {
        return bad_scale ? ErrorCode::bad_scale : ErrorCode::reserved_bits;
      }
      break;
    case ValueType::table2:
    case ValueType::table4: {
      for (std::size_t b = 0; b < blocks; ++b)
        bad_scale |= !valid_table(table_bits(type_), scales_ + b * scale_bytes(type_));
      const std::size_t bits = entries_ * table_bits(type_);
      if (bits % 8 != 0 && std::to_integer<unsigned>(data_[bits / 8]) >> (bits % 8) != 0) {
        return bad_scale ? ErrorCode::bad_scale : ErrorCode::reserved_bits;
      }
      break;
    }
  }
  if (bad_scale) return ErrorCode::bad_scale;
  return bad_value ? ErrorCode::nonfinite_value : ErrorCode::ok;
}

std::size_t ValueReader::decode_block(std::size_t block, float* out) const noexcept {
  const std::size_t begin = block * kBlock;
  const std::size_t count = std::min(kBlock, entries_ - begin);
  switch (type_) {
    case ValueType::fp32:
      std::memcpy(out, data_ + begin * 4, count * 4);
      break;
    case ValueType::fp16: {
      const HalfScale scale(load<std::int8_t>(scales_ + block));
      for (std::size_t i = 0; i < count; ++i) {
        out[i] = scale.decode(load<std::uint16_t>(data_ + (begin + i) * 2));
      }
      break;
    }
    case ValueType::bf16:
      for (std::size_t i = 0; i < count; ++i)
        out[i] = from_bf16(load<std::uint16_t>(data_ + (begin + i) * 2));
      break;
    case ValueType::int8: {
      const float scale = load<float>(scales_ + block * 4);
      for (std::size_t i = 0; i < count; ++i)
        out[i] = static_cast<float>(load<std::int8_t>(data_ + begin + i)) * scale;
      break;
    }
    case ValueType::sign: {
      const float scale = load<float>(scales_ + block * 4);
      const auto magnitude = std::bit_cast<std::uint32_t>(scale);
      for (std::size_t i = 0; i < count; ++i) {
        const unsigned signs = std::to_integer<unsigned>(data_[(begin + i) >> 3]);
        out[i] = std::bit_cast<float>(magnitude ^ (signs >> (i & 7) & 1u) << 31);
      }
      break;
    }
    case ValueType::table2:
    case ValueType::table4:
      decode_table(table_bits(type_), scales_ + block * scale_bytes(type_),
                   data_ + begin * table_bits(type_) / 8, count, out);
      break;
  }
  return count;
}

}  // namespace dgc::wire
