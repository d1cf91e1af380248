// Putting a folder in order, by the one rank of each disk that does so.
#pragma once

#include <cstdint>
#include <filesystem>

#include "checkpoint/survey.h"

namespace dgc::checkpoint {

/// Gives the directory that open() would choose for `step` its final name, and removes its other
/// stages. Where nothing is complete, only the partial one is removed. `rank` is this rank.
void settle(const std::filesystem::path& folder, const Survey& survey, int rank,
            std::uint64_t step);

/// Settles all steps, removes all checkpoints but the newest `keep` complete ones up to `step` (and
/// any later ones), and what killed runs left.
void prune(const std::filesystem::path& folder, const Survey& survey, int rank, std::uint64_t step,
           int keep);

}  // namespace dgc::checkpoint
