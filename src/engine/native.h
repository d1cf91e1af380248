// The engine's own dense sum, for a benchmark to compare with.
#pragma once

#include <span>

#include "dgc/group.h"

namespace dgc {

/// Replaces `values` by the sum over all ranks, in an order of the engine's choosing, and not
/// counted by traffic(). False, and nothing done, where the engine has none. Throws as
/// Group::exchange does.
bool native_all_reduce(Group& group, std::span<float> values);

}  // namespace dgc
