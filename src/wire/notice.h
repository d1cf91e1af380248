// The notice of a message: what a rank tells the others with a bucket. docs/format.md, "Notices".
#pragma once

#include <cstddef>
#include <span>

#include "dgc/wire.h"

namespace dgc::wire {

/// Writes notice_bytes(notice) bytes.
void write_notice(const Notice& notice, std::byte* out) noexcept;

/// Reads the notice at the start of `in`, and says how long it is.
ErrorCode read_notice(std::span<const std::byte> in, Notice& notice, std::size_t& size);

}  // namespace dgc::wire
