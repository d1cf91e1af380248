// What the fuzz targets share.
#pragma once

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "dgc/error.h"

namespace dgc::fuzz {

/// Unlike assert, also in release builds.
inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "violated: %s\n", what);
  std::abort();
}

/// The code of the Error that `call` throws, or ok. Whatever else it throws goes on and ends the
/// run: only Error is allowed.
template <typename Call>
ErrorCode outcome(Call&& call) {
  try {
    std::forward<Call>(call)();
  } catch (const Error& error) {
    require(error.code() != ErrorCode::ok, "an Error has a code");
    return error.code();
  }
  return ErrorCode::ok;
}

/// Takes fields off the front of the input, zeros once it is used up: every input has a meaning.
class Input {
 public:
  explicit Input(std::span<const std::uint8_t> bytes) : rest_(bytes) {}

  template <typename T>
  T take() {
    T value{};
    const std::size_t count = std::min(sizeof value, rest_.size());
    if (count > 0) std::memcpy(&value, rest_.data(), count);
    rest_ = rest_.subspan(count);
    return value;
  }
  bool empty() const { return rest_.empty(); }

 private:
  std::span<const std::uint8_t> rest_;
};

/// A few words from the input, repeated to any length: blocks of hundreds of values out of inputs
/// that stay small. `mask` says which bits differ from one repetition to the next; none are ties.
class Pattern {
 public:
  Pattern(std::uint32_t mask, std::vector<std::uint32_t> words)
      : mask_(mask), words_(std::move(words)) {
    if (words_.empty()) words_.push_back(0);
  }

  std::uint32_t word(std::size_t i) const {
    const auto mixed = (i + 1) * 0x9E3779B97F4A7C15u;
    return words_[i % words_.size()] ^ (static_cast<std::uint32_t>(mixed >> 32) & mask_);
  }
  /// Any float at all.
  float any(std::size_t i) const { return std::bit_cast<float>(word(i)); }
  /// Infinities and NaNs become the largest binade.
  float finite(std::size_t i) const {
    const std::uint32_t bits = word(i);
    return std::bit_cast<float>((bits & 0x7F800000u) == 0x7F800000u ? bits & ~0x00800000u : bits);
  }

 private:
  std::uint32_t mask_;
  std::vector<std::uint32_t> words_;
};

/// Writes the checksum that ends messages and state files. Without it hardly any mutation would get
/// past the first check.
inline void fix_checksum(std::vector<std::byte>& contents) {
  if (contents.size() < sizeof(std::uint64_t)) return;
  const std::size_t hashed = contents.size() - sizeof(std::uint64_t);
  const std::uint64_t checksum = XXH64(contents.data(), hashed, 0);
  std::memcpy(contents.data() + hashed, &checksum, sizeof checksum);
}

inline bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

}  // namespace dgc::fuzz
