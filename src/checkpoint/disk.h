// What one rank does to files and directories. All of it throws Error(io) unless it says otherwise.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

#include "checkpoint/format.h"

namespace dgc::checkpoint {

/// Writes a file and flushes it to disk.
void write_file(const std::filesystem::path& path, std::span<const std::byte> bytes);

/// An empty file that did not exist before. It need not survive a power failure.
void create_file(const std::filesystem::path& path);

/// The manifest of a checkpoint's directory. Throws also as parse_manifest does, and
/// state_mismatch if it is that of another step than the directory's name says.
Manifest read_manifest(const std::filesystem::path& directory);

/// Flushes the names in a directory to disk, where the file system can do that.
void sync_directory(const std::filesystem::path& directory) noexcept;

/// Renames within one directory, and flushes that directory.
void rename_path(const std::filesystem::path& from, const std::filesystem::path& to);

/// Removes the directory of a step, of any stage, if it exists: it is renamed to stage gone first,
/// so that nobody takes half of it for a checkpoint. Links are not followed.
void discard(const std::filesystem::path& directory);

/// Removes what an interrupted discard() left. Ignores failures.
void remove_gone(const std::filesystem::path& directory) noexcept;

/// A file in memory that can also be opened by its path. It has no name on any disk, so nothing is
/// left of it even if the process is killed.
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

}  // namespace dgc::checkpoint
