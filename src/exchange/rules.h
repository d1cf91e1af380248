// What every rank's message of a round has to be. Nothing here knows an engine: the Python package,
// which has torch.distributed in place of one, follows the same rules.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "dgc/wire.h"

namespace dgc::exchange {

/// A tensor that a message of a round may have, and its size there.
struct Expected {
  std::size_t tensor;
  std::uint64_t elements;
};

/// What is expected of the messages of a round.
struct Rules {
  const char* phase;  ///< for errors
  std::uint64_t step;
  std::uint32_t schema;
  const Notice& notice;  ///< of this rank: bucket and number of tensors are everybody's
  std::span<const Expected> tensors;  ///< in increasing order
  const char* hint;                   ///< where a rank made another call
};

/// Where the message at the start of `bytes` ends, by its own word: the check finds what is wrong.
std::size_t message_size(std::span<const std::byte> bytes) noexcept;
/// Most bytes of a message with a notice for so many tensors and `contents` bytes beside it; room
/// for the cause of a failure is in it.
std::uint64_t parcel_bound(std::size_t tensors, std::uint64_t contents) noexcept;

/// Throws Error that names the peer where its message is damaged.
CheckedMessage checked_message(const Rules& rules, const std::string& peer,
                               std::span<const std::byte> bytes);
/// Throws Error: configuration_mismatch unless the message is of this step, schema, sender and
/// bucket; unknown_tensor for one that is not expected.
void check_message(const Rules& rules, const std::string& peer, std::size_t sender,
                   const CheckedMessage& message);

/// What any of the ranks said, by rank. Throws Error(diverged) where their hashes differ.
Notice merged(std::span<const Notice* const> notices, std::uint64_t step);
/// Throws Error(diverged) unless all ranks have the same hash of their parameters. By rank.
void compare_hashes(std::span<const std::uint64_t> hashes, std::uint64_t step);

}  // namespace dgc::exchange
