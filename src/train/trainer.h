// Training one model in one mode, on all workers of a group.
#pragma once

#include <csignal>
#include <filesystem>
#include <string>

#include "dgc/group.h"
#include "train/console.h"
#include "train/record.h"
#include "train/settings.h"

namespace dgc::train {

struct ModeRequest {
  Settings settings;
  std::string mode;              ///< one of modes_of(settings)
  std::filesystem::path folder;  ///< of the mode: RUN/MODE; the ranks may share it or not
  bool resume = false;           ///< continue from the newest checkpoint there, if there is one
  /// Looked at in each step: when not 0 on any rank, all stop after the same step, with a
  /// checkpoint.
  const volatile std::sig_atomic_t* stop = nullptr;
};

struct TrainedMode {
  bool stopped = false;  ///< before the end, with a checkpoint
  /// As in result.json; the same on all ranks but for times and bytes, which are each rank's own.
  ModeResult figures;
};

/// A collective call. Rank 0 writes the files of the folder, all write checkpoints, and rank 0's
/// console says what goes on. Throws Error, on all ranks sooner or later; the folder has the last
/// checkpoint then.
TrainedMode train_mode(Group& group, const ModeRequest& request, Console& console);

}  // namespace dgc::train
