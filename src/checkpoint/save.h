// Writes a checkpoint of a whole run. docs/checkpoint.md has the layout and the order of writing.
//
// The folder may be one that all ranks share, one on each machine, or one for each rank: the ranks
// find out by themselves. If one rank has trouble with its disk, all ranks throw the same Error,
// which names the rank and the file, and the group can still be used. Errors of the group itself
// are thrown as they are. A slow disk does not make the group time out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dgc/group.h"
#include "dgc/state.h"

namespace dgc::checkpoint {

/// A file that is the same on every rank, e.g. "model.pt". Written once to each disk. The name has
/// letters, digits, '.', '_' and '-' only.
struct Blob {
  std::string name;
  std::span<const std::byte> bytes;
};

/// What one rank gives.
struct Contents {
  std::uint64_t step = 0;        ///< same on all ranks
  std::string user;              ///< UTF-8 of the caller's choosing; rank 0's is kept
  std::vector<Blob> shared;      ///< same names and bytes on all ranks
  const State* state = nullptr;  ///< this rank's u and v
};

/// Told of each thing that save() is about to do, by name: for tests that interrupt it.
using Trace = std::function<void(std::string_view)>;

/// Collective: every rank of the group calls it. Writes folder/step-000000001200 and returns its
/// path; makes the folder if needed. A checkpoint of the same step is replaced. Then the oldest are
/// removed, so that `keep` complete ones up to this step are left. What cannot be removed stays
/// until the next save.
///
/// On any Error, and if any rank is killed at any moment, the checkpoints that were there before
/// are as they were. Errors: io; invalid_argument; configuration_mismatch if ranks differ in step,
/// keep, names or kind of state; diverged if they differ in the bytes of a shared file.
std::filesystem::path save(Group& group, const std::filesystem::path& folder,
                           const Contents& contents, int keep, const Trace& trace = {});

}  // namespace dgc::checkpoint
