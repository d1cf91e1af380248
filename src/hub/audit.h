// What a hub has written down: its run done again from the oldest snapshot, commit by commit, and
// the newest snapshot for those who go on without the hub.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "hub/journal.h"
#include "hub/replica.h"

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

/// A run as its newest snapshot has it.
struct SavedRun {
  Replica replica;
  /// Of the hub, which selects: what it has received and not sent, of all tensors one after the
  /// other; or empty.
  std::vector<float> residual;
  std::uint64_t last_round = 0;              ///< that is in the journal
  std::uint64_t examples = 0;                ///< in the commits up to the snapshot
  std::int64_t positions = 0;                ///< in an epoch; 0: data are private
  std::optional<EvaluationNote> evaluation;  ///< the last
};
/// Throws Error(io) where nobody has given parameters yet.
SavedRun saved_run(const std::filesystem::path& folder);

}  // namespace dgc::hub
