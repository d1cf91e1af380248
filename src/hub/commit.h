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
  /// Whose messages they are. Empty with Down::select: the hub keeps them in its Inbox, so that a
  /// commit is as large for a thousand members as for two.
  std::vector<Part> parts;
  /// Down::forward: one of each part, in their order. Down::select: the hub's.
  std::vector<Bytes> messages;
  Bytes buffers;  ///< means of batch normalisation, in the order of the run's buffers; or empty
  /// Hash of the parameters before this commit, in some commits.
  std::optional<std::uint64_t> parameters;
};

/// What a commit of a hub that selects was made of. It stays at the hub.
struct Inbox {
  std::vector<Part> parts;
  std::vector<Bytes> messages;  ///< one of each part, in their order
};

std::uint64_t examples_of(const std::vector<Part>& parts);

Bytes to_bytes(const Commit& commit);
/// Throws Error, also for messages that are not valid.
Commit commit_from(std::span<const std::byte> bytes);

Bytes to_bytes(const Inbox& inbox);
/// Throws Error.
Inbox inbox_from(std::span<const std::byte> bytes);

}  // namespace dgc::hub
