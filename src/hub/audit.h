// Does a hub's run again from what it has written down: from the oldest snapshot, commit by commit.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

namespace dgc::hub {

struct Audit {
  struct Member {
    std::uint64_t messages = 0, examples = 0;
    std::uint64_t last = 0;  ///< number of its last message
  };

  std::string run;
  std::uint64_t from = 0, to = 0;  ///< rounds: of the oldest snapshot, and of the last commit
  std::uint64_t examples = 0;      ///< in the commits between
  std::uint64_t parameters = 0;
  std::uint64_t hash = 0;  ///< of the parameters after the last
  std::uint64_t snapshots = 0;
  bool finished = false;
  std::map<std::string, Member> members;
};

/// Checks on the way: each commit follows the one before, no message is in two commits, parameters
/// are those of every hash and of every snapshot. `folder` has the journal. Throws Error that says
/// what does not hold.
Audit audit(const std::filesystem::path& folder);

}  // namespace dgc::hub
