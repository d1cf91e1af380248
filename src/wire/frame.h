// One frame: header, values, positions. docs/format.md, "Frames".
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "dgc/error.h"
#include "dgc/wire.h"
#include "wire/indices.h"
#include "wire/values.h"

namespace dgc::wire {

/// Version of the frame layout, in the two top bits of the codes byte.
inline constexpr unsigned kFrameVersion = 1;

/// encode_frame without a look at the input, for callers that made it themselves. `decoded` may be
/// empty where the values are fp32 and none is zero: it would be the values.
FrameInfo encode_checked(const FrameInput& input, std::span<std::byte> out,
                         std::span<float> decoded);

/// Bytes of a frame after its first field, for an info that has everything but `bytes`.
std::uint64_t body_bytes(const FrameInfo& info) noexcept;
/// Writes all that comes before the values; body_bytes() has to be below 2^32. Returns its end.
std::byte* put_header(const FrameInfo& info, std::byte* out) noexcept;

struct FrameView {
  FrameInfo info;
  std::span<const std::byte> values;
  std::span<const std::byte> indices;

  ValueReader value_reader() const noexcept {
    return {info.value_type, values.data(), static_cast<std::size_t>(info.entries)};
  }
  IndexReader index_reader() const noexcept { return {info.coding, indices, info.elements}; }

  /// Calls sink(indices, values, count) for each block. Only for frames that validate() accepted.
  template <typename Sink>
  void for_each_block(Sink&& sink) const {
    const ValueReader value_source = value_reader();
    IndexReader index_source = index_reader();
    std::uint32_t positions[kBlock];
    float decoded[kBlock];
    for (std::size_t block = 0; block < blocks_of(info.entries); ++block) {
      const std::size_t count = value_source.decode_block(block, decoded);
      index_source.next_block(count, positions);
      sink(static_cast<const std::uint32_t*>(positions), static_cast<const float*>(decoded), count);
    }
  }
};

/// Parses the frame at the start of `in`, checking header and section sizes only.
ErrorCode parse_frame(std::span<const std::byte> in, FrameView& frame) noexcept;

/// Checks every position and value of a parsed frame.
ErrorCode validate_frame(const FrameView& frame) noexcept;

}  // namespace dgc::wire
