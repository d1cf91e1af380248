// Joining the group that this process was started for.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "dgc/engines.h"

namespace dgc::process {

/// The version of libtorch in this installation, for training and for groups that meet at
/// MASTER_ADDR. Empty where there is none.
std::string libtorch_version();

/// Whether the ranks of a group of this engine ("auto": what this process was started for) find
/// each other by MASTER_ADDR and MASTER_PORT: with gloo and shared, unless DGC_STORE names a
/// folder.
bool meets_at_address(const std::string& engine);

/// make_group with the store that the environment names: DGC_STORE, or else MASTER_ADDR where
/// libtorch is there.
std::unique_ptr<Group> join_group(const std::string& engine, std::chrono::milliseconds timeout);

}  // namespace dgc::process
