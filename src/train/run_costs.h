// The constants by which `auto` chooses, kept with a run: a run that is continued chooses as
// before.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "dgc/costs.h"
#include "dgc/group.h"

namespace dgc::train {

nlohmann::ordered_json to_json(const Costs& costs);

/// Rank 0 writes them to the folder of a mode, beside its result.
void keep_costs(const Group& group, const std::filesystem::path& folder, const Costs& costs);

/// What rank 0 finds in the folder, on all ranks; nothing where there is no such file, or that of
/// another number of workers. Throws Error: io, bad_state. A collective call.
std::optional<Costs> kept_costs(Group& group, const std::filesystem::path& folder);

}  // namespace dgc::train
