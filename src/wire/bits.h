// Little-endian integers, varints, and bit streams (least significant bit first).
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace dgc::wire {

static_assert(std::endian::native == std::endian::little,
              "the wire format is little-endian and is read and written in place");

template <typename T>
T load(const std::byte* p) noexcept {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

template <typename T>
void store(std::byte* p, T value) noexcept {
  std::memcpy(p, &value, sizeof value);
}

inline constexpr std::size_t varint_size(std::uint32_t value) noexcept {
  return value < (1u << 7)    ? 1
         : value < (1u << 14) ? 2
         : value < (1u << 21) ? 3
         : value < (1u << 28) ? 4
                              : 5;
}

inline std::byte* put_varint(std::byte* p, std::uint32_t value) noexcept {
  while (value >= 0x80) {
    *p++ = static_cast<std::byte>(value | 0x80);
    value >>= 7;
  }
  *p++ = static_cast<std::byte>(value);
  return p;
}

/// Appends bit fields to a buffer that the caller has sized for all of them.
class BitWriter {
 public:
  explicit BitWriter(std::byte* out) noexcept : out_(out) {}

  /// `width` at most 32; bits of `value` above `width` must be zero.
  void put(std::uint64_t value, unsigned width) noexcept {
    window_ |= value << used_;
    used_ += width;
    if (used_ >= 32) {
      store(out_, static_cast<std::uint32_t>(window_));
      out_ += 4;
      window_ >>= 32;
      used_ -= 32;
    }
  }

  /// Pads with zero bits to a whole byte. Returns the end of what was written.
  std::byte* finish() noexcept {
    for (; used_ > 0; used_ = used_ > 8 ? used_ - 8 : 0) {
      *out_++ = static_cast<std::byte>(window_);
      window_ >>= 8;
    }
    return out_;
  }

 private:
  std::byte* out_;
  std::uint64_t window_ = 0;
  unsigned used_ = 0;
};

}  // namespace dgc::wire
