// A whole run: all its modes one after the other, and its folder.
#pragma once

#include <csignal>
#include <filesystem>

#include "dgc/group.h"
#include "train/console.h"
#include "train/record.h"
#include "train/settings.h"

namespace dgc::train {

struct RunRequest {
  Settings settings;
  std::filesystem::path folder;
  /// Continue the run of the folder. Modes that are finished there are not run again.
  bool resume = false;
  const volatile std::sig_atomic_t* stop = nullptr;  ///< see ModeRequest
};

struct TrainedRun {
  bool stopped = false;
  Summary summary;  ///< as in summary.json; on rank 0
};

/// A collective call; ranks that were given other settings are found out. Rank 0's folder has the
/// results. Throws Error.
TrainedRun train_run(Group& group, const RunRequest& request, Console& console);

}  // namespace dgc::train
