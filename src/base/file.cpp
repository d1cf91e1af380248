#include "base/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "dgc/error.h"

namespace dgc {
namespace {

[[noreturn]] void fail_io(const char* operation, const std::filesystem::path& path,
                          const char* what) {
  throw Error(ErrorCode::io, operation, path.string(),
              fmt::format("{}: {}", what, std::strerror(errno)));
}

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) fail_io("read", path, "cannot open");
  struct stat status {};
  if (::fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(descriptor);
    throw Error(ErrorCode::io, "read", path.string(), "is not a regular file");
  }
  size_ = static_cast<std::size_t>(status.st_size);
  if (size_ > 0) {
    void* const mapping = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (mapping == MAP_FAILED) {
      ::close(descriptor);
      fail_io("read", path, "cannot map");
    }
    data_ = static_cast<const std::byte*>(mapping);
  }
  ::close(descriptor);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

AtomicFile::AtomicFile(std::filesystem::path path, For readers)
    : path_(std::move(path)), temporary_(path_.string() + fmt::format(".tmp{}", ::getpid())) {
  descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC,
                       readers == For::owner ? 0600 : 0666);
  if (descriptor_ < 0) fail("cannot create");
}

AtomicFile::~AtomicFile() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
    ::unlink(temporary_.c_str());
  }
}

void AtomicFile::fail(const char* what) const { fail_io("write", path_, what); }

void AtomicFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail("cannot write");
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

void AtomicFile::commit() {
  if (::fsync(descriptor_) != 0) fail("cannot flush to disk");
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail("cannot rename into place");
  ::close(descriptor_);
  descriptor_ = -1;
  // The rename itself reaches the disk with the directory. Not every file system can do that.
  const std::filesystem::path parent = path_.has_parent_path() ? path_.parent_path() : ".";
  const int directory = ::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory >= 0) {
    ::fsync(directory);
    ::close(directory);
  }
}

}  // namespace dgc
