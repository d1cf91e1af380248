// What is said between the server of an address store and its clients, after the introduction.
//
// A message is its length (4 bytes), its contents, and the code of the contents (32 bytes, Seal).
//   request   operation (1), length of the key (2), key, value
//   answer    status (1), value
// A client asks one thing at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/bytes.h"
#include "engine/connection.h"
#include "engine/introduction.h"

namespace dgc::detail {

enum class Operation : std::uint8_t { set = 1, get = 2, remove = 3 };
enum class Status : std::uint8_t {
  ok = 0,
  absent = 1,
  full = 2,       ///< the server keeps no more keys or bytes
  malformed = 3,  ///< not a request of this protocol
};

inline constexpr std::size_t kLongestKey = 512;
inline constexpr std::size_t kLongestValue = std::size_t{64} * 1024;
inline constexpr std::size_t kLongestMessage = 3 + kLongestKey + kLongestValue;
inline constexpr std::size_t kLengthBytes = 4;
inline constexpr const char* kStorePurpose = "dgc store 1";

inline void send_sealed(Connection& connection, Seal& seal, std::span<const std::byte> contents) {
  std::vector<std::byte> message;
  append_number(message, static_cast<std::uint32_t>(contents.size()));
  append(message, contents);
  append(message, seal.next(contents));
  connection.send(message);
}

/// How many bytes the message that is arriving has, as far as is known; 0: too many.
inline std::size_t message_size(const Connection& connection) {
  if (!connection.has(kLengthBytes)) return kLengthBytes;
  const auto length = wire::load<std::uint32_t>(connection.in().data());
  return length > kLongestMessage ? 0 : kLengthBytes + length + sizeof(Mac);
}

/// The contents of the message that has arrived; false: its code is wrong.
inline bool open_sealed(const Connection& connection, Seal& seal,
                        std::span<const std::byte>& contents) {
  const auto all = connection.in();
  contents = all.subspan(kLengthBytes, all.size() - kLengthBytes - sizeof(Mac));
  return same(all.last(sizeof(Mac)), seal.next(contents));
}

}  // namespace dgc::detail
