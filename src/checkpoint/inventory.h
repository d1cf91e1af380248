// Which checkpoints there are: in one rank's folder, and on the disks of all ranks together.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/format.h"
#include "dgc/error.h"

namespace dgc::checkpoint {

// ---- Without a group: what is on this disk.

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
/// Reads every file. Never throws for damage. Throws Error(io) if there is no such directory.
Description describe(const std::filesystem::path& directory);

/// The directories of steps in a folder that have a manifest, newest first. Includes those that an
/// interrupted save() left.
std::vector<std::filesystem::path> list(const std::filesystem::path& folder);

// ---- With a group: what all ranks see.

/// A directory with a manifest, as one rank sees it.
struct Sighting {
  std::string path;
  std::uint64_t step = 0;
  Stage stage = Stage::whole;
  std::optional<Error> damage;  ///< why the manifest cannot be read; the rest is then empty
  std::uint64_t id = 0;         ///< Manifest::id
  std::vector<bool> present;    ///< by file of the manifest: whether it is in the directory
  std::vector<bool> expected;   ///< the same: whether it belongs there
  int workers = 0;              ///< the last so many files are those of the ranks
  std::string stray;            ///< a rank's file that the manifest does not know
};

/// What this rank sees in its folder, as JSON for the other ranks: all checkpoints, or those of one
/// step only. Empty if there is no such folder.
nlohmann::json look_into(const std::filesystem::path& folder,
                         std::optional<std::uint64_t> step = {});

/// What was found out about a step. All ranks come to the same conclusion.
struct Verdict {
  /// Manifest::id of the contents that open() would choose: complete, though perhaps not yet of
  /// stage whole on every disk.
  std::optional<std::uint64_t> id;
  std::optional<Error> error;  ///< damage, or disks that contradict each other
  std::string missing;         ///< why nothing is complete
};

/// What all ranks see, as every one of them knows it.
class Inventory {
 public:
  /// What look_into gave on each rank, in their order.
  explicit Inventory(const std::vector<nlohmann::json>& by_rank);

  int ranks() const { return static_cast<int>(by_rank_.size()); }
  /// Newest first.
  std::vector<std::uint64_t> steps() const;
  Verdict judge(std::uint64_t step) const;

  /// Where a rank sees these contents, or nullptr.
  const Sighting* find(int rank, std::uint64_t step, std::uint64_t id) const;
  /// The lowest rank that sees these contents, or that has this file of them; -1 for none.
  int lowest(std::uint64_t step, std::uint64_t id) const;
  int lowest_with(std::uint64_t step, std::uint64_t id, std::size_t file) const;

 private:
  std::string missing_of(std::uint64_t step, std::uint64_t id) const;
  bool seen_by_all(std::uint64_t step, std::uint64_t id) const;
  std::optional<Error> damage_of(std::uint64_t step) const;

  std::vector<std::vector<Sighting>> by_rank_;
};

}  // namespace dgc::checkpoint
