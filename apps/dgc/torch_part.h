// What the commands need libtorch for. Loading libtorch takes nearly a second, so there are two
// programs from the same commands: `dgc`, which does not have it, and `dgc-torch`, which does. In
// `dgc` each of these functions, and those that the headers below declare, starts the same command
// anew as `dgc-torch` (front.cpp); nothing may have been printed before.
//
//   bench/torch.h            measure_steps(), measure_steps_as_rank()
//   process/rendezvous.h     join_group(), where torchrun started the group
//   train/measure_compute.h  measure_compute()
//   train/measure_sizes.h    measure_sizes()
#pragma once

#include <filesystem>

#include "train/hub_member.h"
#include "train/settings.h"

namespace dgc::app {

struct TrainJob {
  train::Settings settings;
  std::filesystem::path folder;
  bool resume = false;  ///< the run that is in the folder
  bool quiet = false;
  bool as_json = false;
};

/// One rank, in the group that this process was started for. `workers` is what the user asked for,
/// or 0. Returns the exit status.
int train_as_rank(const TrainJob& job, int workers);

/// All ranks, as threads of this process. Returns the exit status.
int train_in_threads(const TrainJob& job, int workers);

struct JoinJob {
  train::JoinRequest request = {};
  bool quiet = false, as_json = false;
};

/// A member of a hub's run. Returns the exit status.
int join_here(const JoinJob& job);

struct ExportJob {
  std::filesystem::path run, out;
  std::string own_settings = "{}";  ///< JSON
  bool quiet = false;
};

/// Writes a hub's run as one of `dgc train`.
void export_run(const ExportJob& job);

/// Parameters and buffers of a checkpoint of `dgc train`, as hub::kInitialFile has them: the newest
/// in RUN/MODE/checkpoints. Throws Error.
hub::Bytes initial_parameters(const std::filesystem::path& checkpoints);

}  // namespace dgc::app
