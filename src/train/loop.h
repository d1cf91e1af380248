// Training one model in one mode, on all workers of a group.
#pragma once

#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "dgc/group.h"
#include "train/console.h"
#include "train/settings.h"

namespace dgc::train {

struct Job {
  Settings settings;
  std::string mode;              ///< one of modes_of(settings)
  std::filesystem::path folder;  ///< of the mode: RUN/MODE; the ranks may share it or not
  bool resume = false;           ///< continue from the newest checkpoint there, if there is one
  /// Looked at in each step: when not 0 on any rank, all stop after the same step, with a
  /// checkpoint.
  const volatile std::sig_atomic_t* stop = nullptr;
};

struct Outcome {
  bool stopped = false;  ///< before the end, with a checkpoint
  /// As in summary.json, under the name of the mode; the same on all ranks but for times and bytes,
  /// which are each rank's own.
  nlohmann::ordered_json result;
  /// What is the same for all modes.
  nlohmann::ordered_json common;
};

/// A collective call. Rank 0 writes the files of the folder, all write checkpoints, and rank 0's
/// console says what goes on. Throws Error, on all ranks sooner or later; the folder has the last
/// checkpoint then.
Outcome train(Group& group, const Job& job, Console& console);

}  // namespace dgc::train
