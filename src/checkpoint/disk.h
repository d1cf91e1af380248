// What one rank does to files and directories. Everything throws Error(io) unless it says
// otherwise.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

#include "checkpoint/manifest.h"

namespace dgc::checkpoint {

/// Writes a file and flushes it to disk.
void write_file(const std::filesystem::path& path, std::span<const std::byte> bytes);

/// An empty file that was not there before; whether it outlives a power failure does not matter.
void create_file(const std::filesystem::path& path);

/// Size and checksum of bytes that are, or will be, a file called `name`.
FileEntry measure(std::string name, std::span<const std::byte> bytes);

/// Throws Error naming `subject` unless the bytes are those of the entry: truncated,
/// trailing_bytes, checksum_mismatch.
void check_bytes(std::span<const std::byte> bytes, const FileEntry& entry,
                 const std::string& subject, const std::string& hint = {});

/// The manifest of a checkpoint's directory. Throws also as parse_manifest does, and
/// state_mismatch if it is that of another step than the directory's name says.
Manifest read_manifest(const std::filesystem::path& directory);

/// Flushes the names in a directory to disk, where the file system can do that.
void sync_directory(const std::filesystem::path& directory) noexcept;

/// Renames within one directory, and flushes that.
void rename_path(const std::filesystem::path& from, const std::filesystem::path& to);

/// Removes the directory of a step, of any stage, if there is one: it gets the name of stage gone
/// first, so that nobody takes half of it for a checkpoint. Links are not followed.
void discard(const std::filesystem::path& directory);

/// Removes what discard() left when it was interrupted. Ignores failures.
void remove_gone(const std::filesystem::path& directory) noexcept;

}  // namespace dgc::checkpoint
