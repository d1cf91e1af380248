// A whole run: all its modes one after the other, its folder, its report.
#pragma once

#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "dgc/group.h"
#include "train/console.h"
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
  nlohmann::ordered_json summary;  ///< as in summary.json; on rank 0
};

/// A collective call; ranks that were given other settings are found out. Rank 0's folder has the
/// results. Throws Error.
SessionOutcome run_session(Group& group, const Session& session, Console& console);

}  // namespace dgc::train
