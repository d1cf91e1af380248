// Joining the group that this process was started for.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "dgc/engines.h"

namespace dgc::process {

/// The version of libtorch in this installation, for training and for groups that torchrun started.
/// Empty where there is none.
std::string libtorch_version();

/// Whether the ranks of a group of this engine ("auto": what this process was started for) find
/// each other in the store of torchrun's agent, which only libtorch can talk to.
bool meets_at_agent(const std::string& engine);

/// make_group, and under torchrun with libtorch.
std::unique_ptr<Group> join_group(const std::string& engine, std::chrono::milliseconds timeout);

/// What the user should know about who can disturb the group; "" if there is nothing to say.
std::string security_note(const Group& group);

}  // namespace dgc::process
