// A commit: what a round changes. Parameters after round t follow exactly from those at 0 and the
// commits 1 … t.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "hub/packet.h"

namespace dgc::hub {

/// Whose gradients are in a commit.
struct Part {
  std::string member;
  std::uint64_t sequence = 0;  ///< of the member's messages
  std::uint64_t base = 0;      ///< the round whose parameters its last gradient was computed at
  std::uint64_t examples = 0;
  float factor = 1.0f;  ///< below 1 where the hub has scaled the message down (--norm-bound)

  bool operator==(const Part&) const = default;
};

struct Commit {
  std::uint64_t round = 0;  ///< 1 is the first
  float lr = 0.0f;
  float share = 1.0f;  ///< of the sum of all messages: 1 / examples, or 1 where the hub selected
  double ratio = 1.0;  ///< that members select by after this round
  std::vector<Part> parts;
  /// Down::forward: one of each part, in their order. Down::select: the hub's.
  std::vector<Bytes> messages;
  Bytes buffers;  ///< means of batch normalisation, in the order of the run's buffers; or empty
  /// Hash of the parameters before this commit, in some commits.
  std::optional<std::uint64_t> parameters;

  std::uint64_t examples() const;
};

Bytes to_bytes(const Commit& commit);
/// Throws Error, also for messages that are not valid.
Commit commit_from(std::span<const std::byte> bytes);

}  // namespace dgc::hub
