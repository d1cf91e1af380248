#include "train/changeable.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "dgc/error.h"
#include "train/run_folder.h"
#include "train/settings.h"

namespace dgc::train {
namespace {

const std::vector<std::string> kOfARank = {"workers", "launch", "threads", "loaders", "timeout",
                                           "data",    "train",  "valid",   "test"};
/// May change between a run and its continuation, beside those.
const std::vector<std::string> kHowItRuns = {"log-every", "keep", "checkpoint-every",
                                             "emulate-link"};

bool among(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

bool differs_between_ranks(const std::string& setting) { return among(kOfARank, setting); }

nlohmann::json resumed_settings(const std::filesystem::path& folder, const nlohmann::json& given) {
  const auto config = read_json(folder / kConfigFile);
  if (!config) {
    throw Error(ErrorCode::io, "resume", (folder / kConfigFile).string(), "there is no such run",
                "`--resume` takes the folder that an earlier run was written to");
  }
  nlohmann::json settings = nlohmann::json::parse(config->dump());
  for (const auto& [name, value] : given.items()) {
    if (!differs_between_ranks(name) && !among(kHowItRuns, name) &&
        todays(name, settings.value(name, nlohmann::json())) != value) {
      throw Error(ErrorCode::invalid_argument, "resume", "--" + name,
                  "cannot change in the middle of a run",
                  fmt::format("may change: {}, {}", fmt::join(kOfARank, ", "),
                              fmt::join(kHowItRuns, ", ")));
    }
    settings[name] = value;
  }
  return settings;
}

}  // namespace dgc::train
