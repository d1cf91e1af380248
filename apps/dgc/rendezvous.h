// Joining the group that this process was started for.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "dgc/engines.h"

namespace dgc::app {

/// Whether MASTER_ADDR and MASTER_PORT can be followed: libtorch is compiled in.
bool has_address_rendezvous() noexcept;

/// make_group with the store that the environment names: DGC_STORE, or else MASTER_ADDR where
/// libtorch is compiled in.
std::unique_ptr<Group> join_group(const std::string& engine, std::chrono::milliseconds timeout);

}  // namespace dgc::app
