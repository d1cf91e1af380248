// torchrun's store as a RendezvousStore.
#pragma once

namespace dgc::detail {

/// From then on make_group() finds the others under torchrun. Returns true.
bool know_agent_store() noexcept;

}  // namespace dgc::detail
