// A run over a hub as one that `dgc train --resume` goes on with.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>

#include "train/console.h"

namespace dgc::train {

/// Writes `out`: config.json and a checkpoint, with what the hub's newest snapshot has. What
/// members have not sent yet stays with them. `own` are settings of this machine, such as where the
/// data are. Throws Error.
void export_hub_run(const std::filesystem::path& run, const std::filesystem::path& out,
                    const nlohmann::json& own, Console& console);

}  // namespace dgc::train
