// Work of each rank on its own disk, whose outcome all ranks learn.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "dgc/group.h"

namespace dgc::checkpoint {

struct Outcome {
  std::vector<nlohmann::json> results;  // by rank; complete if nothing failed
  /// The Error of the lowest rank that failed, with its number in the problem. The same on all
  /// ranks, and the group can still be used.
  std::optional<Error> failure;
};

/// Collective. Runs `work` on every rank; it must not use the group. Disks may take their time:
/// ranks that wait hear from the others often enough that the group does not time out. Throws only
/// errors of the group.
Outcome together(Group& group, const std::string& operation,
                 const std::function<nlohmann::json()>& work);

/// The same, throwing the failure.
std::vector<nlohmann::json> agree(Group& group, const std::string& operation,
                                  const std::function<nlohmann::json()>& work);

}  // namespace dgc::checkpoint
