// Checkpoints of a whole run in a folder. Layout, order of writing and errors: docs/checkpoint.md.
//
// The folder may be one that all ranks share, one on each machine, or one for each rank: ranks find
// out by themselves. All functions but the last two are collective: every rank of the group calls
// them. Trouble of one rank with its disk is thrown as the same Error on all ranks, naming the rank
// and the file, and the group can still be used. Errors of the group itself are thrown as they are.
// A slow disk does not make the group time out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/manifest.h"
#include "dgc/error.h"
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

/// Collective. Writes folder/step-000000001200 and returns its path; makes the folder. A checkpoint
/// of the same step is replaced. Then the oldest are removed, so that `keep` complete ones up to
/// this step are left; what cannot be removed stays until the next save.
///
/// On any Error, and if any rank is killed at any moment, the checkpoints that were there before
/// are as they were. Errors: io; invalid_argument; configuration_mismatch if ranks differ in step,
/// keep, names or kind of state; diverged if they differ in the bytes of a shared file.
std::filesystem::path save(Group& group, const std::filesystem::path& folder,
                           const Contents& contents, int keep, const Trace& trace = {});

/// A checkpoint that open() has found whole. The group has to outlive it.
class Checkpoint {
 public:
  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;
  ~Checkpoint();

  std::uint64_t step() const noexcept;
  const std::string& user() const noexcept;
  /// Ranks of the group that wrote it.
  int workers() const noexcept;
  /// The directory; as the lowest rank that sees it calls it, where this rank does not.
  const std::filesystem::path& path() const noexcept;
  std::vector<std::string> shared_names() const;

  /// Not collective. The bytes of a shared file, compared with its checksum again. Throws Error:
  /// invalid_argument if there is none of that name.
  std::vector<std::byte> shared(std::string_view name) const;

  /// Collective. With as many ranks as wrote the checkpoint, each gets its own u and v back. With M
  /// others, old rank i goes to rank i mod M: sums of u and v over all ranks are conserved. Throws
  /// Error: state_mismatch, shape_mismatch (see State::load), and state_mismatch for another number
  /// of ranks when states are those of hosts (hierarchical exchange). On any Error no state of any
  /// rank is changed. Needs the memory of a second State meanwhile, of a third with other numbers.
  void load_state(State& state) const;

 private:
  friend std::optional<Checkpoint> open(Group& group, const std::filesystem::path& folder,
                                        std::optional<std::uint64_t> step);
  struct Impl;
  explicit Checkpoint(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Collective. The newest checkpoint that the ranks have together, or exactly that of `step`; every
/// file that a rank needs has then been compared with its checksum. Files that it does not see come
/// over the group and are held in memory. Nothing if no rank has any checkpoint.
///
/// A checkpoint that was not finished on every disk is passed over; one that is damaged is not:
/// Error with the file, the rank, what is wrong, and the path of the newest good one before it.
/// Errors: io for a missing file or step; the codes of damage (truncated, trailing_bytes,
/// checksum_mismatch, bad_state, bad_version); state_mismatch if two disks have different
/// checkpoints of one step, or a rank's file does not belong.
std::optional<Checkpoint> open(Group& group, const std::filesystem::path& folder,
                               std::optional<std::uint64_t> step = {});

/// What is in one directory of this disk.
struct Description {
  std::filesystem::path path;
  Manifest manifest;
  struct File {
    FileEntry entry;
    bool elsewhere = false;       ///< belongs to another disk and is not on this one
    std::optional<Error> damage;  ///< compared with size and checksum
  };
  std::vector<File> files;
  std::optional<Error> damage;  ///< the first; of the manifest too, which is then empty
};
/// Not collective. Reads every file. Never throws for damage. Throws Error(io) if there is no such
/// directory.
Description describe(const std::filesystem::path& directory);

/// Not collective. The directories of steps in a folder that have a manifest, newest first; with
/// those that an interrupted save() left.
std::vector<std::filesystem::path> list(const std::filesystem::path& folder);

}  // namespace dgc::checkpoint
