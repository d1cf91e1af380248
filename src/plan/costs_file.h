// Constants of another machine.
#pragma once

#include <filesystem>

#include "plan/cost.h"

namespace dgc::plan {

/// Reads a JSON object with any of the names of Costs (seconds), and `payload`, into `setup`.
/// Throws Error(io) or Error(invalid_argument) that names the file and what is wrong in it.
void read_costs(const std::filesystem::path& path, Scenario& setup);

}  // namespace dgc::plan
