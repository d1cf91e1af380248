// What hub and members send each other: a JSON object with byte strings beside it. docs/hub.md,
// "Packets", is the normative description.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dgc/error.h"

namespace dgc::hub {

using Bytes = std::vector<std::byte>;

/// Of the protocol. Hub and members have to have the same.
inline constexpr int kProtocol = 1;

/// Refers to the bytes that it was read from.
struct Packet {
  nlohmann::json head;
  std::vector<std::span<const std::byte>> blobs;

  /// Throws Error(truncated) unless there is one of that number.
  std::span<const std::byte> blob(std::size_t i) const;
};

Bytes write_packet(const nlohmann::json& head,
                   std::span<const std::span<const std::byte>> blobs = {});

/// Most bytes of the JSON, most levels in it, and most byte strings.
inline constexpr std::size_t kLongestHead = std::size_t{4} << 20;
inline constexpr int kDeepestHead = 16;
inline constexpr std::size_t kMostBlobs = 65'536;

/// Throws Error: bad_magic, bad_version, reserved_bits, truncated, trailing_bytes,
/// checksum_mismatch, bad_length, bad_state where the head is no JSON object. Allocates in
/// proportion to `bytes` only.
Packet read_packet(std::span<const std::byte> bytes);

/// What the hub says is wrong, in an answer that says so.
std::optional<Error> error_in(const Packet& answer);

/// Throws Error(configuration_mismatch), naming both, unless the hub that said this ("protocol" and
/// "version", in its answer to /v1/run) is of the same version.
void require_same_version(const nlohmann::json& head);

/// A field of the head, of the type that T is. Throws Error(bad_state) that names it where it is
/// absent, of another type, or a number outside T's range.
std::uint64_t whole_number(const nlohmann::json& head, const char* name);
double number(const nlohmann::json& head, const char* name);
std::string text(const nlohmann::json& head, const char* name);
bool flag(const nlohmann::json& head, const char* name);
/// A float as the number of its bits, so that everybody has the same.
float float_of_bits(const nlohmann::json& head, const char* name);
std::uint32_t bits_of(float value) noexcept;

}  // namespace dgc::hub
