// Files that may be gzipped, read as if they were not.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>

struct gzFile_s;

namespace dgc::data {

class UnpackedFile {
 public:
  /// Throws Error(io).
  explicit UnpackedFile(std::filesystem::path path);
  ~UnpackedFile();
  UnpackedFile(const UnpackedFile&) = delete;
  UnpackedFile& operator=(const UnpackedFile&) = delete;

  /// Fills `bytes` as far as the file goes and returns how many there were; fewer only at the end.
  /// Throws Error: truncated when a gzipped file ends early, io when it is damaged or unreadable.
  std::size_t read(std::span<std::uint8_t> bytes);

  const std::filesystem::path& path() const noexcept { return path_; }

 private:
  std::filesystem::path path_;
  gzFile_s* file_ = nullptr;
  std::uint64_t done_ = 0;  ///< bytes handed out so far
};

}  // namespace dgc::data
