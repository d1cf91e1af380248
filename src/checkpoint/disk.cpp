#include "checkpoint/disk.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>
#include <xxhash.h>

#include <cerrno>
#include <system_error>

#include "base/file.h"
#include "checkpoint/names.h"
#include "dgc/error.h"

namespace dgc::checkpoint {

namespace fs = std::filesystem;

void write_file(const fs::path& path, std::span<const std::byte> bytes) {
  AtomicFile file(path);
  file.write(bytes);
  file.commit();
}

void create_file(const fs::path& path) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor < 0) {
    throw Error(ErrorCode::io, "write", path.string(),
                "cannot create: " + std::generic_category().message(errno));
  }
  ::close(descriptor);
}

FileEntry measure(std::string name, std::span<const std::byte> bytes) {
  return {std::move(name), bytes.size(), XXH64(bytes.data(), bytes.size(), 0)};
}

void check_bytes(std::span<const std::byte> bytes, const FileEntry& entry,
                 const std::string& subject, const std::string& hint) {
  if (bytes.size() != entry.size) {
    throw Error(bytes.size() < entry.size ? ErrorCode::truncated : ErrorCode::trailing_bytes,
                "read checkpoint", subject,
                fmt::format("has {} bytes, its manifest says {}", bytes.size(), entry.size), hint);
  }
  if (XXH64(bytes.data(), bytes.size(), 0) != entry.checksum) {
    throw Error(ErrorCode::checksum_mismatch, "read checkpoint", subject,
                "is damaged: it does not have the checksum in its manifest", hint);
  }
}

Manifest read_manifest(const fs::path& directory) {
  const fs::path path = directory / kManifestName;
  const MappedFile file(path);
  Manifest manifest = parse_manifest(file.contents(), path.string());
  const auto name = parse_step_name(directory.filename().string());
  if (name && name->step != manifest.step) {
    throw Error(ErrorCode::state_mismatch, "read manifest", path.string(),
                fmt::format("is of step {}", manifest.step), "directories must keep their names");
  }
  return manifest;
}

void sync_directory(const fs::path& directory) noexcept {
  const int descriptor = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return;
  ::fsync(descriptor);
  ::close(descriptor);
}

void rename_path(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) {
    throw Error(ErrorCode::io, "rename", to.string(),
                "cannot rename into place: " + std::generic_category().message(errno));
  }
  sync_directory(to.parent_path());
}

void discard(const fs::path& directory) {
  const auto name = parse_step_name(directory.filename().string());
  if (!name || !fs::exists(fs::symlink_status(directory))) return;
  if (!fs::is_directory(directory)) {
    throw Error(ErrorCode::io, "remove", directory.string(), "is in the way and not a directory");
  }
  const fs::path gone = directory.parent_path() / step_name(name->step, Stage::gone);
  remove_gone(gone);
  rename_path(directory, gone);
  remove_gone(gone);
}

void remove_gone(const fs::path& directory) noexcept {
  std::error_code ignored;
  const auto name = parse_step_name(directory.filename().string());
  if (name && name->stage == Stage::gone && fs::is_directory(directory, ignored)) {
    fs::remove_all(directory, ignored);
  }
}

}  // namespace dgc::checkpoint
