// Putting messages together.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "wire/bits.h"

namespace dgc::detail {

inline std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}
inline std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

inline void append(std::vector<std::byte>& to, std::span<const std::byte> bytes) {
  // Not insert(): GCC 12 sees an overflow in it that is none.
  const std::size_t before = to.size();
  to.resize(before + bytes.size());
  if (!bytes.empty()) std::memcpy(to.data() + before, bytes.data(), bytes.size());
}
template <typename Number>
void append_number(std::vector<std::byte>& to, Number value) {
  to.resize(to.size() + sizeof value);
  wire::store(to.data() + to.size() - sizeof value, value);
}

}  // namespace dgc::detail
