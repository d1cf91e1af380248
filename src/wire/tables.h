// Values of 2 and of 4 bits: a sign, and which of the 2 or 8 magnitudes of the block's table.
//
// The entries of a selection have magnitudes from the threshold upwards, most of them near it, on
// both sides of zero alike. So the table has magnitudes only, and is fitted to those of each block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "dgc/wire.h"

namespace dgc::wire {

/// Bits of a value; 0 for types that have no table.
inline constexpr unsigned table_bits(ValueType type) noexcept {
  return type == ValueType::table2 ? 2 : type == ValueType::table4 ? 4 : 0;
}

/// Magnitudes of a table, each of them a bfloat16, for values of so many bits.
inline constexpr std::size_t table_levels(unsigned bits) noexcept {
  return std::size_t{1} << (bits - 1);
}

/// Fits a table to the values of a block, at most kBlock, and writes it to `table`, the codes to
/// `codes`, padded to a byte with zeros, and what they decode to into `decoded`.
void encode_table(unsigned bits, std::span<const float> values, std::byte* table, std::byte* codes,
                  float* decoded) noexcept;

/// Magnitudes are finite, not negative, and do not decrease.
bool valid_table(unsigned bits, const std::byte* table) noexcept;

void decode_table(unsigned bits, const std::byte* table, const std::byte* codes, std::size_t count,
                  float* out) noexcept;

}  // namespace dgc::wire
