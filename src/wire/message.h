// What others than users ask of messages.
#pragma once

#include <span>

#include "dgc/wire.h"

namespace dgc::wire {

/// As decode_add. Frames of tensors whose target is empty are left out.
void add_some(const CheckedMessage& message, std::span<const std::span<float>> targets,
              std::span<const float> alphas);

}  // namespace dgc::wire
