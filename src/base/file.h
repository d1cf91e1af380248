// Whole files: read by mapping, written atomically.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace dgc {

/// A read-only mapping of a file. Throws Error(io).
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> contents() const noexcept { return {data_, size_}; }

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

/// Writes to a temporary name beside `path`; commit() flushes to disk and renames. Without commit
/// the temporary file is removed and `path` is untouched. Throws Error(io).
class AtomicFile {
 public:
  enum class For { everybody, owner };  ///< everybody: whom umask lets read it
  explicit AtomicFile(std::filesystem::path path, For readers = For::everybody);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> bytes);
  void commit();

 private:
  [[noreturn]] void fail(const char* what) const;

  std::filesystem::path path_;
  std::filesystem::path temporary_;
  int descriptor_ = -1;
};

}  // namespace dgc
