// torchrun's store, which only libtorch can talk to: dgc::torch says how.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "dgc/engines.h"

namespace dgc::detail {

using MakeAgentStore = std::shared_ptr<RendezvousStore> (*)(const std::string& host,
                                                            std::uint16_t port, int size,
                                                            std::chrono::milliseconds timeout);

/// Set by dgc::torch before main() begins; null without it.
MakeAgentStore& agent_store_maker() noexcept;

/// Whether MASTER_PORT belongs to torchrun's agent, and no rank serves it.
bool has_agent_store();

}  // namespace dgc::detail
