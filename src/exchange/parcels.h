// A round of an exchange: one message to each rank and one from each, checked once.
#pragma once

#include <functional>
#include <vector>

#include "exchange/context.h"
#include "exchange/rules.h"

namespace dgc::exchange {

std::vector<Expected> expected_of(std::span<const Gradient> gradients);

/// What goes to each rank in a round: one for each of them, or one for all. A message, and dense
/// values behind it where there are any.
using Outbox = std::vector<std::vector<std::byte>>;

/// What a round expects of every rank's message.
struct RoundSpec {
  const char* phase;
  const Notice& notice;           ///< of this rank: bucket and number of tensors are everybody's
  std::vector<Expected> tensors;  ///< in increasing order
  std::vector<std::size_t> values = {};  ///< bytes of dense values behind it, by rank; empty: none
};

/// Sends what `make` returns and returns what all ranks sent, by rank. Where `make` throws, the
/// others get the cause in place of its messages, and it is thrown on here. Every message that
/// comes is checked: valid, of this step, schema, bucket and sender, with no other tensors than
/// expected. Throws Error(peer_failed) with the cause of a rank that failed.
std::vector<Received> swap_parcels(Context& context, Rounds& rounds, const RoundSpec& spec,
                                   Contents& contents, const std::function<Outbox()>& make);

/// One message of such a round, that says it is of `sender` and came from `from`, as users count
/// ranks.
Received check_parcel(const Context& context, const RoundSpec& spec, int sender, int from,
                      Parcel parcel);

/// A message with a notice and nothing else.
std::vector<std::byte> notice_message(const Context& context, const Notice& notice);

/// What any of the ranks said. Throws Error(diverged) where their hashes differ.
Notice merged(const Context& context, std::span<const Received> all);
/// Tells the others what this rank has to say of a bucket, in a round of its own.
Notice agree(Context& context, Task& task, Contents& contents);

}  // namespace dgc::exchange
