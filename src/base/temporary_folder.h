// A folder in the temporary directory, for as long as an object lives.
#pragma once

#include <filesystem>
#include <string>

namespace dgc {

class TemporaryFolder {
 public:
  /// "<prefix>XXXXXX" in `parent`; "": in TMPDIR, or where the system has temporary files. Throws
  /// Error(io).
  explicit TemporaryFolder(const std::string& prefix = "dgc-", std::filesystem::path parent = {});
  /// Removes it with all that is in it.
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const noexcept { return path_; }
  std::filesystem::path operator/(const std::filesystem::path& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

}  // namespace dgc
