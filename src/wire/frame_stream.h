// A frame whose entries come one block after the other, and are neither listed nor copied before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "dgc/wire.h"
#include "wire/rice.h"

namespace dgc::wire {

/// Writes fp32 values and Rice codes: the same bytes as encode_checked with these.
class FrameStream {
 public:
  /// Whether to try at all, for `entries` of `elements`: the coding may be Rice, and there is no
  /// reason to expect a bitmap or a dense frame to be smaller.
  static bool suits(const FrameInfo& planned, IndexCoding coding) noexcept;

  /// `planned` says tensor, elements and entries. `out` has frame_bound() bytes, of Rice
  /// codes or of the automatic coding.
  FrameStream(const FrameInfo& planned, const RiceKernels& kernels, std::span<std::byte> out);
  /// Blocks of kBlock entries; a shorter one is the last. Values are finite and not zero.
  void add(std::span<const std::uint32_t> indices, std::span<const float> values) noexcept;
  /// After the last entry. `bytes` is 0 where there was no room: another coding is smaller then.
  FrameInfo finish() noexcept;

 private:
  FrameInfo info_;
  std::byte* out_;
  std::byte* values_;  // where the section begins
  std::byte* next_;    // where the next value goes
  RiceEncoder rice_;
};

/// Whether no other coding would have made this frame smaller. False where that takes a closer
/// look.
bool rice_is_smallest(const FrameInfo& info) noexcept;

}  // namespace dgc::wire
