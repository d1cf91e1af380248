// What a Checkpoint holds.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/fetch.h"
#include "checkpoint/folder.h"

namespace dgc::checkpoint {

struct Checkpoint::Impl {
  Group* group = nullptr;
  std::filesystem::path path;
  Manifest manifest;
  Fetched fetched;

  /// The file as errors call it, and where its bytes are: the same unless it was fetched.
  std::string subject_of(std::size_t file) const;
  std::filesystem::path source_of(std::size_t file) const;
};

/// Old ranks whose states `rank` of `ranks` goes on with, of `workers`.
std::vector<int> old_ranks_of(int rank, int ranks, int workers);

}  // namespace dgc::checkpoint
