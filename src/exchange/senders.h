// The mean of an entry over those who sent it.
#pragma once

#include <span>
#include <vector>

#include "dgc/wire.h"

namespace dgc::exchange {

/// Adds to targets[tensor][index] alphas[tensor] times the sum of what the messages have there,
/// times messages over the number of those that have it: values are shares of a mean over all.
/// Tensors in `whole` were sent by all, whatever their values; they are simply added. Zeros do not
/// count as sent. The messages are those of all ranks, in their order; frames of tensors whose
/// target is empty are left out. Throws Error, with the targets untouched: shape_mismatch,
/// unknown_tensor, and limit_exceeded for more than 65,535 messages.
void add_mean_of_senders(std::span<const CheckedMessage* const> messages,
                         std::span<const std::span<float>> targets, std::span<const float> alphas,
                         const std::vector<bool>& whole);

}  // namespace dgc::exchange
