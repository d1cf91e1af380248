// Value codings: fp32, fp16 and int8 and sign with a scale per block, bf16, and values that are
// looked up in a table per block (wire/tables.h).
//
// Every decoded value is one exact product rounded once to float, so that any implementation that
// rounds to nearest even gets the same bits (docs/format.md, "Values").
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "dgc/error.h"
#include "dgc/wire.h"

namespace dgc::wire {

/// Entries that share a scale, and entries that share a Rice parameter. 128 would cost 0.04 bits
/// an entry in Rice parameters and miss the entropy bound by over 1 %; 512 adapts worse to
/// clusters.
inline constexpr std::size_t kBlock = 256;

inline constexpr std::size_t blocks_of(std::size_t entries) noexcept {
  return (entries + kBlock - 1) / kBlock;
}

/// Whether a value of this type can be zero. Of the others, a frame without positions has to hold
/// every element.
inline constexpr bool says_zero(ValueType type) noexcept {
  return type != ValueType::sign && type != ValueType::table2 && type != ValueType::table4;
}

/// Bytes of the value section.
std::size_t value_bytes(ValueType type, std::size_t entries) noexcept;

/// Least and largest magnitude of finite values; infinity and zero where there are none.
struct Magnitudes {
  float smallest;
  float largest;
};
Magnitudes magnitudes_of(std::span<const float> values) noexcept;

bool all_finite(std::span<const float> values) noexcept;

/// Whether `value` would decode to zero in a block whose largest magnitude is `block_max`.
bool vanishes(ValueType type, float value, float block_max) noexcept;

/// The same of many values of one block: most are told by a comparison.
class Vanishing {
 public:
  Vanishing(ValueType type, float block_max) noexcept;
  bool operator()(float magnitude) const noexcept {
    if (magnitude > survives_) return false;
    return magnitude < goes_ || vanishes(type_, magnitude, block_max_);
  }

 private:
  ValueType type_;
  float block_max_;
  float goes_;      // what is below vanishes
  float survives_;  // what is above does not
};

/// Writes the value section to `out` (value_bytes long) and what it decodes to into `decoded`,
/// which may be null for fp32.
void encode_values(ValueType type, std::span<const float> values, std::byte* out,
                   float* decoded) noexcept;

/// Reads a value section of `entries` values, already checked to be value_bytes long.
class ValueReader {
 public:
  ValueReader(ValueType type, const std::byte* section, std::size_t entries) noexcept;

  /// Checks scales, reserved codes and finiteness of everything.
  ErrorCode validate() const noexcept;

  /// Decodes block `block` (kBlock values, fewer in the last) into `out`; returns how many.
  std::size_t decode_block(std::size_t block, float* out) const noexcept;

 private:
  ValueType type_;
  const std::byte* scales_;
  const std::byte* data_;
  std::size_t entries_;
};

}  // namespace dgc::wire
