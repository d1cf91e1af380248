// Parameters may lack a gradient on some ranks (branches not taken, unused heads). A rank that
// lacks one has to know whether another has it: then it contributes zero, else the tensor is left
// alone. (The paper does not know such parameters.)
//
// Before each bucket every rank sends every other one bit for each tensor, with step and bucket:
// one message each way, and one network delay, beside backward where overlap is on.
#include "exchange/presence.h"

#include <fmt/format.h>

#include <cstring>

#include "engine/ended.h"

namespace dgc::exchange {
namespace {

// magic (4), step (8), bucket (4), tensors (4), the same on all ranks; flags (1); then one bit for
// each tensor.
constexpr std::uint32_t kMagic = 0x50434744;  // "DGCP"
constexpr std::size_t kSame = 20;
constexpr std::size_t kHeader = kSame + 1;
constexpr std::byte kNonfinite{1};
constexpr std::byte kStop{2};

std::vector<std::byte> packed(const Presence& presence) {
  const auto tensors = static_cast<std::uint32_t>(presence.present.size());
  std::vector<std::byte> bytes(presence_bytes(tensors));
  std::memcpy(bytes.data(), &kMagic, 4);
  std::memcpy(bytes.data() + 4, &presence.step, 8);
  std::memcpy(bytes.data() + 12, &presence.bucket, 4);
  std::memcpy(bytes.data() + 16, &tensors, 4);
  if (presence.nonfinite) bytes[kSame] |= kNonfinite;
  if (presence.stop) bytes[kSame] |= kStop;
  for (std::size_t i = 0; i < tensors; ++i) {
    if (presence.present[i]) bytes[kHeader + i / 8] |= std::byte{1} << (i % 8);
  }
  return bytes;
}

}  // namespace

std::uint64_t presence_bytes(std::size_t tensors) noexcept { return kHeader + (tensors + 7) / 8; }

Presence share_presence(Group& group, const Presence& mine, std::span<const std::uint64_t> next) {
  if (group.failure()) throw ended_earlier(*group.failure());
  Presence all = mine;
  const std::vector<std::byte> own = packed(mine);
  const auto gathered = group.swap(own, own.size(), next);
  for (int r = 0; r < group.size(); ++r) {
    const auto bytes = gathered[static_cast<std::size_t>(r)].bytes;
    if (bytes.size() != own.size() || std::memcmp(bytes.data(), own.data(), kSame) != 0) {
      std::string at = "does something else";
      if (bytes.size() >= kHeader && std::memcmp(bytes.data(), &kMagic, sizeof kMagic) == 0) {
        std::uint64_t step = 0;
        std::uint32_t bucket = 0;
        std::memcpy(&step, bytes.data() + 4, 8);
        std::memcpy(&bucket, bytes.data() + 12, 4);
        at = fmt::format("is at step {}, bucket {}", step, bucket);
      }
      throw Error(ErrorCode::configuration_mismatch, "exchange",
                  fmt::format("rank {}", group.world_rank(r)),
                  fmt::format("{}, this rank is at step {}, bucket {}", at, mine.step, mine.bucket),
                  "all ranks have to make the same calls; a rank whose data ends early uses "
                  "request_stop()");
    }
    all.nonfinite |= (bytes[kSame] & kNonfinite) != std::byte{};
    all.stop |= (bytes[kSame] & kStop) != std::byte{};
    for (std::size_t i = 0; i < all.present.size(); ++i) {
      if ((bytes[kHeader + i / 8] >> (i % 8) & std::byte{1}) != std::byte{}) all.present[i] = true;
    }
  }
  return all;
}

}  // namespace dgc::exchange
