// Which lanes a vector keeps, by the bits of a mask: for instruction sets that have no instruction
// for it. Highway's own Compress has such tables too, but GCC 12 copies those of version 1.0 to the
// stack at every use: 30 times slower on AVX2.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace dgc::compress {

/// For vectors of eight: the numbers of the lanes whose bits are set, then zeros.
inline constexpr auto kEightLanes = [] {
  std::array<std::array<std::uint32_t, 8>, 256> table{};
  for (std::size_t bits = 0; bits < table.size(); ++bits) {
    std::size_t kept = 0;
    for (std::uint32_t lane = 0; lane < 8; ++lane) {
      if ((bits >> lane & 1) != 0) table[bits][kept++] = lane;
    }
  }
  return table;
}();

/// For vectors of four: the numbers of their bytes, likewise.
inline constexpr auto kFourLanes = [] {
  std::array<std::array<std::uint8_t, 16>, 16> table{};
  for (std::size_t bits = 0; bits < table.size(); ++bits) {
    std::size_t kept = 0;
    for (std::size_t byte = 0; byte < 16; ++byte) {
      if ((bits >> byte / 4 & 1) != 0) table[bits][kept++] = static_cast<std::uint8_t>(byte);
    }
  }
  return table;
}();

}  // namespace dgc::compress
