// bucket (4), tensors (4), flags (1), reserved (1), error code (2), bytes of the cause (4); then
// the hash of the parameters (8) if there is one, one bit for each tensor, and the cause.
#include "wire/notice.h"

#include <algorithm>
#include <cstring>

#include "wire/bits.h"

namespace dgc {
namespace {

constexpr std::size_t kFixed = 16;
constexpr std::size_t kHash = 8;

enum Flag : unsigned { kStop = 1, kNonfinite = 2, kParameters = 4, kFailed = 8 };

constexpr std::size_t bytes_of_bits(std::size_t bits) noexcept { return (bits + 7) / 8; }

std::size_t cause_bytes(const Notice& notice) noexcept {
  return notice.failure ? std::min(notice.failure->text.size(), Notice::kLongestCause) : 0;
}

/// Codes of a later version have no name here.
ErrorCode known(std::uint16_t code) noexcept {
  const auto codes = error_codes();
  const auto found = std::find(codes.begin(), codes.end(), static_cast<ErrorCode>(code));
  return found == codes.end() ? ErrorCode::internal : *found;
}

}  // namespace

std::size_t notice_bound(std::size_t tensors) noexcept {
  return kFixed + kHash + bytes_of_bits(tensors);
}

std::size_t notice_bytes(const Notice& notice) noexcept {
  return kFixed + (notice.parameters ? kHash : 0) + bytes_of_bits(notice.present.size()) +
         cause_bytes(notice);
}

namespace wire {

void write_notice(const Notice& notice, std::byte* out) noexcept {
  const unsigned flags = (notice.stop ? kStop : 0u) | (notice.nonfinite ? kNonfinite : 0u) |
                         (notice.parameters ? kParameters : 0u) | (notice.failure ? kFailed : 0u);
  store(out, notice.bucket);
  store(out + 4, static_cast<std::uint32_t>(notice.present.size()));
  store(out + 8, static_cast<std::uint8_t>(flags));
  store(out + 9, std::uint8_t{0});
  store(out + 10,
        static_cast<std::uint16_t>(notice.failure ? notice.failure->code : ErrorCode::ok));
  store(out + 12, static_cast<std::uint32_t>(cause_bytes(notice)));
  out += kFixed;
  if (notice.parameters) {
    store(out, *notice.parameters);
    out += kHash;
  }
  const std::size_t bits = bytes_of_bits(notice.present.size());
  std::fill_n(out, bits, std::byte{0});
  for (std::size_t i = 0; i < notice.present.size(); ++i) {
    if (notice.present[i]) out[i / 8] |= std::byte{1} << (i % 8);
  }
  out += bits;
  if (notice.failure) std::memcpy(out, notice.failure->text.data(), cause_bytes(notice));
}

ErrorCode read_notice(std::span<const std::byte> in, Notice& notice, std::size_t& size) {
  if (in.size() < kFixed) return ErrorCode::truncated;
  notice.bucket = load<std::uint32_t>(in.data());
  const std::size_t tensors = load<std::uint32_t>(in.data() + 4);
  const unsigned flags = load<std::uint8_t>(in.data() + 8);
  if (flags > (kStop | kNonfinite | kParameters | kFailed)) return ErrorCode::reserved_bits;
  if (load<std::uint8_t>(in.data() + 9) != 0) return ErrorCode::reserved_bits;
  const auto code = load<std::uint16_t>(in.data() + 10);
  const std::size_t cause = load<std::uint32_t>(in.data() + 12);
  const bool failed = (flags & kFailed) != 0;
  if (cause > Notice::kLongestCause || (!failed && cause != 0)) return ErrorCode::bad_length;
  if (failed != (code != 0)) return ErrorCode::bad_count;
  const std::size_t hash = (flags & kParameters) != 0 ? kHash : 0;
  const std::size_t bits = bytes_of_bits(tensors);
  size = kFixed + hash + bits + cause;
  if (size > in.size()) return ErrorCode::truncated;

  notice.stop = (flags & kStop) != 0;
  notice.nonfinite = (flags & kNonfinite) != 0;
  const std::byte* p = in.data() + kFixed;
  if (hash != 0) notice.parameters = load<std::uint64_t>(p);
  p += hash;
  notice.present.resize(tensors);  // within eight times what is here
  for (std::size_t i = 0; i < 8 * bits; ++i) {
    const bool set = (p[i / 8] >> (i % 8) & std::byte{1}) != std::byte{};
    if (i < tensors) {
      notice.present[i] = set;
    } else if (set) {
      return ErrorCode::reserved_bits;
    }
  }
  p += bits;
  if (failed) {
    notice.failure = {.code = known(code),
                      .text = std::string(reinterpret_cast<const char*>(p), cause)};
  }
  return ErrorCode::ok;
}

}  // namespace wire
}  // namespace dgc
