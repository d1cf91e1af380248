// Checkpoints of a training run: model, optimizer, u, v, weight-decay momentum, schedule position
// and random state of every rank. Component torch. docs/checkpoint.md has the files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "dgc/sgd.h"

namespace dgc {

struct CheckpointInfo {
  std::uint64_t step = 0;
  std::string user;  ///< what the caller gave to save_checkpoint; rank 0's, when it was loaded
  int workers = 0;   ///< that wrote it
  /// The directory; as the lowest rank that sees it calls it, where this rank does not.
  std::filesystem::path path;
  /// What this rank gave as `mine`, when as many workers load it as wrote it; else undefined.
  torch::Tensor mine = {};
};

/// Writes folder/step-… and removes all but the newest `keep`. Ranks may share the folder or each
/// have one of its own. Written under a temporary name, flushed and renamed: the last good one
/// survives whatever happens. `user` is any text, such as the position in the data; `mine` a tensor
/// of this rank's own, such as the state of a recurrent network between two steps. A collective
/// call. Throws Error(io) on all ranks, naming rank and file, when one cannot write; training can
/// go on then.
CheckpointInfo save_checkpoint(const std::filesystem::path& folder, Sgd& optimizer,
                               const std::string& user = {}, int keep = 2,
                               const torch::Tensor& mine = {});

/// Continues from the newest checkpoint in `folder`, or from that of `step`. nullopt, and nothing
/// changed, when there is none. With the same number of workers training goes on bit for bit as it
/// would have; with another, the sums of u and v over the workers are conserved. Files that a rank
/// does not see come from one that does. Learning rates of the groups are restored; step a
/// torch::optim::LRScheduler as often as it had been before this call. A collective call.
///
/// Throws Error on all ranks, naming file and reason: checksum_mismatch, truncated, bad_state for
/// damage; state_mismatch or shape_mismatch for another model; io when there are checkpoints, but
/// not of `step`. Nothing is changed then.
std::optional<CheckpointInfo> load_checkpoint(const std::filesystem::path& folder, Sgd& optimizer,
                                              std::optional<std::uint64_t> step = {});

}  // namespace dgc
