// Which settings may differ between ranks, and change when a run is continued.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace dgc::train {

/// Whether ranks may be given other values of this setting. Results do not depend on it (on threads
/// only in rounding).
bool differs_between_ranks(const std::string& setting);

/// The settings of the run in `folder`, with those of `given` that may change: how it runs, not
/// what it computes. Throws Error: io when there is no run; invalid_argument for another setting.
nlohmann::json resumed_settings(const std::filesystem::path& folder, const nlohmann::json& given);

}  // namespace dgc::train
