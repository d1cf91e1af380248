// Which settings mean anything to a run: text has no image size, and AdamW no momentum.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "train/settings.h"

namespace dgc::train {

/// Why a setting means nothing to this run ("means nothing to the model cnn"); "" where it does.
std::string why_irrelevant(const std::string& setting, const Settings& settings);

/// The settings that mean something to this run.
nlohmann::ordered_json relevant(const Settings& settings);

}  // namespace dgc::train
