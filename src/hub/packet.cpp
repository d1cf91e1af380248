// Layout: "DGCH", version, three zero bytes, length of the head, number of byte strings (32 bits
// each), the size of each (64 bits), the head, the byte strings, XXH64 of all that.
#include "hub/packet.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "dgc/error.h"
#include "dgc/version.h"

namespace dgc::hub {
namespace {

constexpr std::array<std::byte, 4> kMagic = {std::byte{'D'}, std::byte{'G'}, std::byte{'C'},
                                             std::byte{'H'}};
constexpr std::byte kVersion{1};
constexpr std::size_t kFixed = 16;
constexpr std::size_t kTrailer = 8;

static_assert(std::endian::native == std::endian::little, "packets are little-endian");

template <typename T>
void put(Bytes& out, T value) {
  const auto* const bytes = reinterpret_cast<const std::byte*>(&value);
  out.insert(out.end(), bytes, bytes + sizeof value);
}

template <typename T>
T take(std::span<const std::byte> bytes, std::size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

[[noreturn]] void refuse(ErrorCode code, const std::string& problem) {
  throw Error(code, "hub", "packet", problem);
}

[[noreturn]] void refuse_field(const char* name, const char* expected) {
  throw Error(ErrorCode::bad_state, "hub", fmt::format("field '{}'", name),
              fmt::format("is absent or not {}", expected));
}

nlohmann::json parse_head(std::span<const std::byte> bytes) {
  const auto* const begin = reinterpret_cast<const char*>(bytes.data());
  // The parser uses no stack for levels; who walks through the result may.
  const auto shallow = [](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
    if (depth > kDeepestHead) refuse(ErrorCode::bad_state, "the head has too many levels");
    return true;
  };
  nlohmann::json head =
      nlohmann::json::parse(begin, begin + bytes.size(), shallow, /*allow_exceptions=*/false);
  if (!head.is_object()) refuse(ErrorCode::bad_state, "the head is not a JSON object");
  return head;
}

}  // namespace

std::span<const std::byte> Packet::blob(std::size_t i) const {
  if (i >= blobs.size()) {
    refuse(ErrorCode::truncated, fmt::format("has {} byte strings, not {}", blobs.size(), i + 1));
  }
  return blobs[i];
}

Bytes write_packet(const nlohmann::json& head, std::span<const std::span<const std::byte>> blobs) {
  const std::string text = head.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  std::size_t size = kFixed + 8 * blobs.size() + text.size() + kTrailer;
  for (const auto& blob : blobs) size += blob.size();
  Bytes out;
  out.reserve(size);
  out.insert(out.end(), kMagic.begin(), kMagic.end());
  out.push_back(kVersion);
  out.resize(8);
  put(out, static_cast<std::uint32_t>(text.size()));
  put(out, static_cast<std::uint32_t>(blobs.size()));
  for (const auto& blob : blobs) put(out, static_cast<std::uint64_t>(blob.size()));
  const auto bytes = std::as_bytes(std::span(text));
  out.insert(out.end(), bytes.begin(), bytes.end());
  for (const auto& blob : blobs) out.insert(out.end(), blob.begin(), blob.end());
  put(out, static_cast<std::uint64_t>(XXH64(out.data(), out.size(), 0)));
  return out;
}

Packet read_packet(std::span<const std::byte> bytes) {
  if (bytes.size() >= kMagic.size() && !std::equal(kMagic.begin(), kMagic.end(), bytes.begin())) {
    refuse(ErrorCode::bad_magic, "is not a packet of a hub");
  }
  if (bytes.size() < kFixed + kTrailer) refuse(ErrorCode::truncated, "is too short");
  if (bytes[4] != kVersion) {
    refuse(ErrorCode::bad_version,
           fmt::format("version {} is not known here", std::to_integer<int>(bytes[4])));
  }
  for (std::size_t i = 5; i < 8; ++i) {
    if (bytes[i] != std::byte{0}) refuse(ErrorCode::reserved_bits, "a reserved byte is set");
  }
  const std::size_t head_size = take<std::uint32_t>(bytes, 8);
  const std::size_t count = take<std::uint32_t>(bytes, 12);
  if (head_size > kLongestHead) refuse(ErrorCode::bad_length, "the head is too long");
  if (count > kMostBlobs) refuse(ErrorCode::bad_length, "has too many byte strings");
  std::size_t at = kFixed + 8 * count;
  if (bytes.size() < at + head_size + kTrailer) refuse(ErrorCode::truncated, "ends early");
  std::size_t room = bytes.size() - at - head_size - kTrailer;
  std::vector<std::size_t> sizes(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto size = take<std::uint64_t>(bytes, kFixed + 8 * i);
    if (size > room) refuse(ErrorCode::truncated, "ends early");
    sizes[i] = static_cast<std::size_t>(size);
    room -= sizes[i];
  }
  if (room != 0) refuse(ErrorCode::trailing_bytes, "has bytes at its end");
  const std::size_t contents = bytes.size() - kTrailer;
  if (XXH64(bytes.data(), contents, 0) != take<std::uint64_t>(bytes, contents)) {
    refuse(ErrorCode::checksum_mismatch, "is damaged");
  }
  Packet packet{.head = parse_head(bytes.subspan(at, head_size)), .blobs = {}};
  at += head_size;
  for (const std::size_t size : sizes) {
    packet.blobs.push_back(bytes.subspan(at, size));
    at += size;
  }
  return packet;
}

std::optional<Error> error_in(const Packet& answer) {
  if (!answer.head.contains("error")) return {};
  const ErrorCode code = error_code_named(text(answer.head, "error")).value_or(ErrorCode::internal);
  return Error(code, "hub", text(answer.head, "subject"), text(answer.head, "problem"),
               text(answer.head, "hint"));
}

void require_same_version(const nlohmann::json& head) {
  const std::string version = text(head, "version");
  const std::uint64_t protocol = whole_number(head, "protocol");
  if (version == DGC_VERSION && protocol == kProtocol) return;
  throw Error(ErrorCode::configuration_mismatch, "join", "version",
              fmt::format("the hub has dgc {} (protocol {}), this is dgc {} (protocol {})", version,
                          protocol, DGC_VERSION, kProtocol),
              "install the same version on both");
}

std::uint64_t whole_number(const nlohmann::json& head, const char* name) {
  const auto found = head.find(name);
  if (found == head.end() || !found->is_number_unsigned()) {
    refuse_field(name, "a whole number");
  }
  return found->get<std::uint64_t>();
}

double number(const nlohmann::json& head, const char* name) {
  const auto found = head.find(name);
  if (found == head.end() || !found->is_number() || !std::isfinite(found->get<double>())) {
    refuse_field(name, "a number");
  }
  return found->get<double>();
}

std::string text(const nlohmann::json& head, const char* name) {
  const auto found = head.find(name);
  if (found == head.end() || !found->is_string()) refuse_field(name, "a text");
  return found->get<std::string>();
}

bool flag(const nlohmann::json& head, const char* name) {
  const auto found = head.find(name);
  if (found == head.end() || !found->is_boolean()) refuse_field(name, "true or false");
  return found->get<bool>();
}

float float_of_bits(const nlohmann::json& head, const char* name) {
  const std::uint64_t bits = whole_number(head, name);
  if (bits > std::numeric_limits<std::uint32_t>::max()) refuse_field(name, "the bits of a float");
  const auto value = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
  if (!std::isfinite(value)) refuse_field(name, "the bits of a finite float");
  return value;
}

std::uint32_t bits_of(float value) noexcept { return std::bit_cast<std::uint32_t>(value); }

}  // namespace dgc::hub
