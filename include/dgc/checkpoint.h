// Checkpoints of a training run: model, optimizer, u and v, momentum of weight decay, position in
// the schedule, and the random state of every rank. Component torch. docs/checkpoint.md describes
// the files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "dgc/local_steps.h"
#include "dgc/sgd.h"

namespace dgc {

struct CheckpointInfo {
  std::uint64_t step = 0;
  std::string user;  ///< the text given to save_checkpoint; rank 0's text after a load
  int workers = 0;   ///< how many workers wrote it
  /// The directory. Where this rank does not see it: the path on the lowest rank that does.
  std::filesystem::path path;
  /// The tensor that this rank gave as `mine`. Undefined if another number of workers loads it.
  torch::Tensor mine = {};
};

/// Writes folder/step-… and removes all but the newest `keep`. Ranks may share the folder or each
/// have one of its own. The files are written under a temporary name, flushed and renamed, so the
/// last good checkpoint survives a kill at any moment. `user` is any text, such as the position in
/// the data. `mine` is a tensor of this rank's own, such as the state of a recurrent network
/// between two steps.
///
/// A collective call. If one rank cannot write, all ranks throw Error(io), which names the rank and
/// the file; training can go on.
CheckpointInfo save_checkpoint(const std::filesystem::path& folder, Sgd& optimizer,
                               const std::string& user = {}, int keep = 2,
                               const torch::Tensor& mine = {});

/// Continues from the newest checkpoint in `folder`, or from that of `step`. If there is none,
/// returns nullopt and changes nothing. With the same number of workers, training goes on bit for
/// bit as it would have; with another number, the sums of u and v over the workers are conserved.
/// Files that a rank does not see come from one that does. Learning rates of the groups are
/// restored. A torch::optim::LRScheduler is not: call its step() as often as it had been called,
/// then this function.
///
/// A collective call. Throws Error on all ranks, which names the file and the reason:
/// checksum_mismatch, truncated, bad_state for damage; state_mismatch or shape_mismatch for another
/// model; io if there are checkpoints, but not of `step`. Nothing is changed then.
std::optional<CheckpointInfo> load_checkpoint(const std::filesystem::path& folder, Sgd& optimizer,
                                              std::optional<std::uint64_t> step = {});

/// The same for local steps, between two rounds: parameters, outer momentum and rate, and of every
/// rank its residual and the state of its inner optimizer. `step` counts rounds. With another
/// number of workers, old rank i's inner state goes to the new ranks whose number modulo the old
/// one is i. Throws Error(wrong_order) where local steps were made since the last round.
CheckpointInfo save_checkpoint(const std::filesystem::path& folder, LocalSteps& local,
                               const std::string& user = {}, int keep = 2,
                               const torch::Tensor& mine = {});
std::optional<CheckpointInfo> load_checkpoint(const std::filesystem::path& folder,
                                              LocalSteps& local,
                                              std::optional<std::uint64_t> step = {});

}  // namespace dgc
