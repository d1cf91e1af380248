// Opens a checkpoint of a whole run and gives each rank its state back.
//
// Folders and errors are as in save.h: ranks may share a folder or not, trouble of one rank is the
// same Error on all, and the group can be used afterwards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dgc/group.h"
#include "dgc/state.h"

namespace dgc::checkpoint {

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
  /// The directory. Where this rank does not see it: the path on the lowest rank that does.
  const std::filesystem::path& path() const noexcept;

  /// Not collective. The bytes of a shared file, compared with its checksum again. Throws Error:
  /// invalid_argument if there is none of that name.
  std::vector<std::byte> shared(std::string_view name) const;

  /// Collective. With as many ranks as wrote the checkpoint, each gets its own u and v back. With M
  /// others, old rank i goes to rank i mod M: sums of u and v over all ranks are conserved. Throws
  /// Error: state_mismatch, shape_mismatch (see State::load), and state_mismatch for another number
  /// of ranks when states are those of hosts. On any Error no state of any rank is changed.
  /// Meanwhile it needs the memory of a second State; of a third with other numbers of ranks.
  void load_state(State& state) const;

 private:
  friend std::optional<Checkpoint> open(Group& group, const std::filesystem::path& folder,
                                        std::optional<std::uint64_t> step);
  struct Impl;
  explicit Checkpoint(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Collective: every rank of the group calls it. The newest checkpoint that the ranks have
/// together, or exactly that of `step`. Every file that a rank needs has then been compared with
/// its checksum; files that it does not see come over the group and are held in memory. Nothing if
/// no rank has any checkpoint.
///
/// A checkpoint that was not finished on every disk is passed over. A damaged one is not: the Error
/// names the file, the rank, what is wrong, and the path of the newest good one before it. Errors:
/// io for a missing file or step; the codes of damage (truncated, trailing_bytes,
/// checksum_mismatch, bad_state, bad_version); state_mismatch if two disks have different
/// checkpoints of one step, or a rank's file does not belong; configuration_mismatch if ranks ask
/// for different steps.
std::optional<Checkpoint> open(Group& group, const std::filesystem::path& folder,
                               std::optional<std::uint64_t> step = {});

}  // namespace dgc::checkpoint
