// A whole run: all its modes one after the other, its folder, its report.
#pragma once

#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "dgc/group.h"
#include "train/console.h"
#include "train/report/run.h"
#include "train/settings.h"

namespace dgc::train {

struct Session {
  Settings settings;
  std::filesystem::path folder;
  /// Continue the run of the folder. Modes that are finished there are not run again.
  bool resume = false;
  const volatile std::sig_atomic_t* stop = nullptr;  ///< see Job
};

struct SessionOutcome {
  bool stopped = false;
  // On rank 0:
  nlohmann::ordered_json summary;  ///< as in summary.json
  Run run;                         ///< as the report shows it
};

/// A collective call; ranks that were given other settings are found out. Rank 0's folder has the
/// results. Throws Error.
SessionOutcome run_session(Group& group, const Session& session, Console& console);

/// The settings of the run in `folder`, with those of `given` that may change: how it runs, not
/// what it computes. Throws Error: io when there is no run; invalid_argument for another setting.
nlohmann::json resumed_settings(const std::filesystem::path& folder, const nlohmann::json& given);

}  // namespace dgc::train
