// manifest.json: what is in a checkpoint. The fields are in docs/checkpoint.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace dgc::checkpoint {

struct FileEntry {
  std::string name;
  std::uint64_t size = 0;
  std::uint64_t checksum = 0;  // xxh64
  bool operator==(const FileEntry&) const = default;
};

struct Manifest {
  std::string version;  // of dgc, when it was written
  std::uint64_t step = 0;
  std::uint64_t state_step = 0;
  int workers = 0;                  // ranks of the group that wrote it
  std::uint32_t state_workers = 0;  // State::workers(): hosts, with the hierarchical exchange
  std::string user;
  std::vector<FileEntry> files;  // shared ones first, then those of the ranks in their order
  std::vector<int> ranks_here;   // whose files are on this disk

  std::size_t shared_files() const { return files.size() - static_cast<std::size_t>(workers); }
  std::size_t rank_file(int rank) const { return shared_files() + static_cast<std::size_t>(rank); }
  /// Hash of everything but ranks_here: the same on all disks of one checkpoint, and no other.
  std::uint64_t id() const;
  /// The file's contents. Throws Error(invalid_argument) if `user` is not UTF-8.
  std::string text() const;
};

/// Throws Error naming `subject`: truncated, bad_state, bad_version, checksum_mismatch.
Manifest parse_manifest(std::span<const std::byte> text, const std::string& subject);

}  // namespace dgc::checkpoint
