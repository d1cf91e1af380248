// What all ranks see of the checkpoints in their folders, and which of them are complete.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/names.h"
#include "dgc/error.h"

namespace dgc::checkpoint {

/// A directory with a manifest, as one rank sees it.
struct Sighting {
  std::string path;
  std::uint64_t step = 0;
  Stage stage = Stage::whole;
  std::optional<Error> damage;  // why the manifest cannot be read; the rest is then empty
  std::uint64_t id = 0;         // Manifest::id
  std::string present;          // of each file in the manifest, '1' if it is in the directory
  std::string expected;         // the same, '1' if it belongs there
  int workers = 0;              // the last so many files are those of the ranks
  std::string stray;            // a rank's file that the manifest does not know
};

/// What this rank sees: all, or of one step only. Nothing if there is no such folder.
std::vector<Sighting> look(const std::filesystem::path& folder,
                           std::optional<std::uint64_t> step = {});

nlohmann::json to_json(const std::vector<Sighting>& sightings);
std::vector<Sighting> sightings_of(const nlohmann::json& value);

/// What was found out about a step; all ranks come to the same.
struct Verdict {
  /// The contents that open() would choose: complete, though perhaps not yet of stage whole
  /// everywhere.
  std::optional<std::uint64_t> id;
  std::optional<Error> error;  // damage, or disks that contradict each other
  std::string missing;         // why nothing is complete
};

class Survey {
 public:
  explicit Survey(std::vector<std::vector<Sighting>> by_rank) : by_rank_(std::move(by_rank)) {}

  int ranks() const { return static_cast<int>(by_rank_.size()); }
  /// Newest first.
  std::vector<std::uint64_t> steps() const;
  Verdict judge(std::uint64_t step) const;

  /// Where a rank sees these contents, or nullptr.
  const Sighting* find(int rank, std::uint64_t step, std::uint64_t id) const;
  /// The lowest rank that sees these contents, or has this file of them; -1 for none.
  int lowest(std::uint64_t step, std::uint64_t id) const;
  int lowest_with(std::uint64_t step, std::uint64_t id, std::size_t file) const;

 private:
  std::string missing_of(std::uint64_t step, std::uint64_t id) const;
  bool seen_by_all(std::uint64_t step, std::uint64_t id) const;
  std::optional<Error> damage_of(std::uint64_t step) const;

  std::vector<std::vector<Sighting>> by_rank_;
};

}  // namespace dgc::checkpoint
