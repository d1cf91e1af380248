// The secret that the processes of a group share, and what is made of it: codes that only its
// owners can make (HMAC-SHA256).
#pragma once

#include <array>
#include <cstddef>
#include <initializer_list>
#include <span>
#include <string>

namespace dgc::detail {

using Mac = std::array<std::byte, 32>;
/// A number that is used once.
using Nonce = std::array<std::byte, 32>;

/// A code of all parts, in their order, and of their lengths: no two lists of parts look the same.
Mac mac(std::span<const std::byte> key, std::initializer_list<std::span<const std::byte>> parts);

/// Compares in a time that does not depend on where they differ.
bool same(std::span<const std::byte> a, std::span<const std::byte> b) noexcept;

/// Throws Error(internal) where the system has no random numbers.
Nonce fresh_nonce();

/// A random secret, as text: 128 bits in hexadecimal digits.
std::string new_secret();

/// `given`, or DGC_SECRET where that is empty; "" if there is neither.
std::string secret_or_environment(const std::string& given);

}  // namespace dgc::detail
