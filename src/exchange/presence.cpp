// Parameters may lack a gradient on some ranks (branches not taken, unused heads). A rank that
// lacks one has to know whether another has it: then it contributes zero, else the tensor is left
// alone. Both sides know the size, so there is no length to send first: one latency, hidden behind
// backward.
#include "exchange/presence.h"

#include <fmt/format.h>

#include <cstring>

namespace dgc::exchange {
namespace {

// step (8), bucket (4), tensors (4), flags (1), then one bit for each tensor.
constexpr std::size_t kHeader = 17;
constexpr std::byte kNonfinite{1};
constexpr std::byte kStop{2};

std::vector<std::byte> packed(const Presence& presence) {
  const auto tensors = static_cast<std::uint32_t>(presence.present.size());
  std::vector<std::byte> bytes(kHeader + (tensors + 7) / 8);
  std::memcpy(bytes.data(), &presence.step, 8);
  std::memcpy(bytes.data() + 8, &presence.bucket, 4);
  std::memcpy(bytes.data() + 12, &tensors, 4);
  if (presence.nonfinite) bytes[16] |= kNonfinite;
  if (presence.stop) bytes[16] |= kStop;
  for (std::size_t i = 0; i < tensors; ++i) {
    if (presence.present[i]) bytes[kHeader + i / 8] |= std::byte{1} << (i % 8);
  }
  return bytes;
}

}  // namespace

Presence agree(Group& group, const Presence& mine) {
  Presence all = mine;
  if (group.size() == 1) return all;
  const std::vector<std::byte> own = packed(mine);
  std::vector<std::vector<std::byte>> theirs(static_cast<std::size_t>(group.size()));
  std::vector<Outgoing> sends;
  std::vector<Incoming> receives;
  for (int r = 0; r < group.size(); ++r) {
    if (r == group.rank()) continue;
    auto& bytes = theirs[static_cast<std::size_t>(r)];
    bytes.resize(own.size());
    sends.push_back({r, own});
    receives.push_back({r, bytes});
  }
  group.exchange(sends, receives);
  for (int r = 0; r < group.size(); ++r) {
    if (r == group.rank()) continue;
    const auto& bytes = theirs[static_cast<std::size_t>(r)];
    if (std::memcmp(bytes.data(), own.data(), 16) != 0) {
      std::uint64_t step = 0;
      std::uint32_t bucket = 0;
      std::memcpy(&step, bytes.data(), 8);
      std::memcpy(&bucket, bytes.data() + 8, 4);
      throw Error(ErrorCode::configuration_mismatch, "exchange",
                  fmt::format("rank {}", group.world_rank(r)),
                  fmt::format("is at step {}, bucket {}, this rank at step {}, bucket {}", step,
                              bucket, mine.step, mine.bucket),
                  "all ranks have to make the same calls");
    }
    all.nonfinite |= (bytes[16] & kNonfinite) != std::byte{};
    all.stop |= (bytes[16] & kStop) != std::byte{};
    for (std::size_t i = 0; i < all.present.size(); ++i) {
      if ((bytes[kHeader + i / 8] >> (i % 8) & std::byte{1}) != std::byte{}) all.present[i] = true;
    }
  }
  return all;
}

}  // namespace dgc::exchange
