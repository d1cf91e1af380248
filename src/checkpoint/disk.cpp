// Every change that must survive a power failure is flushed, names too: a rename that is on disk
// before the file it names would leave an empty checkpoint.
#include "checkpoint/disk.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "base/file.h"
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

MemoryFile::MemoryFile(std::size_t size) : size_(size) {
  const auto fail = [&] {
    const int cause = errno;
    if (descriptor_ >= 0) ::close(descriptor_);
    throw Error(ErrorCode::io, "open checkpoint", fmt::format("{} bytes", size),
                "cannot hold a file in memory: " + std::generic_category().message(cause));
  };
  descriptor_ = ::memfd_create("dgc-checkpoint", MFD_CLOEXEC);
  if (descriptor_ < 0) fail();
  if (size == 0) return;
  // Reserved now: without memory this fails, where writing to the mapping would kill the process.
  errno = ::posix_fallocate(descriptor_, 0, static_cast<off_t>(size));
  if (errno != 0) fail();
  void* const mapping = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
  if (mapping == MAP_FAILED) fail();
  data_ = static_cast<std::byte*>(mapping);
}

MemoryFile::~MemoryFile() {
  if (data_ != nullptr) ::munmap(data_, size_);
  ::close(descriptor_);
}

std::filesystem::path MemoryFile::path() const {
  return fmt::format("/proc/self/fd/{}", descriptor_);
}

}  // namespace dgc::checkpoint
