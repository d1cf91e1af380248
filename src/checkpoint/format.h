// What is on disk: the names of files and directories, and manifest.json. docs/checkpoint.md
// specifies both. Nothing here touches a disk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace dgc::checkpoint {

inline constexpr std::string_view kManifestName = "manifest.json";

/// The state of a directory, which the end of its name tells. In the order in which a reader
/// prefers them.
enum class Stage {
  whole,     ///< "": a checkpoint
  replaced,  ///< ".old": the one before, until the new one of the same step is on all disks
  partial,   ///< ".tmp": being written; complete when it has a manifest
  gone,      ///< ".gone": being removed
};

/// "step-000000001200", with the ending of the stage.
std::string step_name(std::uint64_t step, Stage stage = Stage::whole);

struct StepName {
  std::uint64_t step;
  Stage stage;
};
/// The inverse of step_name; nothing for any other text, so that no file of another program is
/// taken for one of ours.
std::optional<StepName> parse_step_name(std::string_view name);

/// "rank-00003.state".
std::string rank_file_name(int rank);
std::optional<int> parse_rank_file_name(std::string_view name);

/// ".dgc-probe-0123456789abcdef-00003": an empty file by which ranks find out who sees the same
/// folder.
std::string probe_name(std::uint64_t nonce, int rank);
bool is_probe_name(std::string_view name);

/// Why no shared file can have this name; "" if it can.
std::string problem_of_shared_name(std::string_view name);

/// A file as the manifest lists it.
struct FileEntry {
  std::string name;
  std::uint64_t size = 0;
  std::uint64_t checksum = 0;  ///< xxh64
  bool operator==(const FileEntry&) const = default;
};

/// Size and checksum of bytes that are, or will be, a file called `name`.
FileEntry measure(std::string name, std::span<const std::byte> bytes);

/// Throws Error naming `subject` unless the bytes are those of the entry: truncated,
/// trailing_bytes, checksum_mismatch.
void check_bytes(std::span<const std::byte> bytes, const FileEntry& entry,
                 const std::string& subject, const std::string& hint = {});

/// manifest.json.
struct Manifest {
  std::string version;  ///< of the dgc that wrote it
  std::uint64_t step = 0;
  std::uint64_t state_step = 0;
  int workers = 0;                  ///< ranks of the group that wrote it
  std::uint32_t state_workers = 0;  ///< State::workers(): hosts, where each has one state
  std::string user;
  std::vector<FileEntry> files;  ///< the shared ones, then one for each rank in order
  std::vector<int> ranks_here;   ///< whose files are on this disk

  std::size_t shared_files() const { return files.size() - static_cast<std::size_t>(workers); }
  std::size_t rank_file(int rank) const { return shared_files() + static_cast<std::size_t>(rank); }
  /// Hash of everything but ranks_here: the same on all disks of one checkpoint, and different for
  /// any other checkpoint.
  std::uint64_t id() const;
  /// The file's contents. Throws Error(invalid_argument) if `user` is not UTF-8.
  std::string text() const;
};

/// Throws Error naming `subject`: truncated, bad_state, bad_version, checksum_mismatch.
Manifest parse_manifest(std::span<const std::byte> text, const std::string& subject);

}  // namespace dgc::checkpoint
