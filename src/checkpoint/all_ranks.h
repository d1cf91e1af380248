// What the ranks of a group do together when each works on its own disk: run the same piece of
// work, learn how it went everywhere, and pass files to those who do not see them.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/disk.h"
#include "dgc/group.h"

namespace dgc::checkpoint {

struct RankResults {
  std::vector<nlohmann::json> by_rank;  ///< complete if nothing failed
  /// The Error of the lowest rank that failed, with its number in the problem. The same on all
  /// ranks, and the group can still be used.
  std::optional<Error> failure;
};

/// Collective. Runs `work` on every rank and gives every rank all results. `work` must not use the
/// group. Disks may be slow: while one rank works, the others hear from it often enough that the
/// group does not time out. Throws errors of the group only.
RankResults try_on_all_ranks(Group& group, const std::string& operation,
                             const std::function<nlohmann::json()>& work);

/// The same, but throws the failure.
std::vector<nlohmann::json> on_all_ranks(Group& group, const std::string& operation,
                                         const std::function<nlohmann::json()>& work);

/// Throws Error(configuration_mismatch) that names the rank, unless it has the same `what` as rank
/// 0.
void require_same(const std::string& operation, int rank, const std::string& what,
                  const nlohmann::json& theirs, const nlohmann::json& of_rank_0);

/// File `file` of the manifest goes from one rank to another.
struct Transfer {
  int from;
  int to;
  std::size_t file;
};

/// Files that came from other ranks, by their number in the manifest.
using ReceivedFiles = std::map<std::size_t, std::unique_ptr<MemoryFile>>;

/// Collective. All ranks give the same transfers; `directory` is where this rank has the files that
/// it sends. Returns the files that this rank received, compared with their checksums. If one rank
/// fails, all throw its Error, with `hint`.
ReceivedFiles transfer_files(Group& group, const std::string& operation, const Manifest& manifest,
                             const std::vector<Transfer>& transfers,
                             const std::filesystem::path& directory, const std::string& hint);

}  // namespace dgc::checkpoint
