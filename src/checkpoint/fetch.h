// Files of a checkpoint that a rank needs and does not see come from one that does.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "checkpoint/manifest.h"
#include "dgc/group.h"

namespace dgc::checkpoint {

/// A file in memory that can also be opened by its path. It has no name on any disk, so that
/// nothing is left of it even if the process is killed.
class MemoryFile {
 public:
  /// All zeros. Throws Error(io), also when there is not enough memory.
  explicit MemoryFile(std::size_t size);
  ~MemoryFile();
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  std::span<std::byte> bytes() const noexcept { return {data_, size_}; }
  std::filesystem::path path() const;

 private:
  int descriptor_ = -1;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

/// File `file` of the manifest goes from one rank to another.
struct Transfer {
  int from;
  int to;
  std::size_t file;
};

/// By number of the file in the manifest.
using Fetched = std::map<std::size_t, std::unique_ptr<MemoryFile>>;

/// Collective. All ranks give the same transfers; `directory` is where this rank sees those that it
/// sends. Returns those that it received, compared with their checksums. If one rank fails, all
/// throw its Error, with `hint`.
Fetched fetch(Group& group, const Manifest& manifest, const std::vector<Transfer>& transfers,
              const std::filesystem::path& directory, const std::string& hint);

}  // namespace dgc::checkpoint
