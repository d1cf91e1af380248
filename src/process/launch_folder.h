// The folder in which the workers of one launch meet.
//
// A launcher that is killed cannot remove its folder. So each folder has a file `lock`, which its
// owner holds locked (flock) for as long as it lives: the kernel lets go of it, however the owner
// ends. Whoever makes the next folder removes those whose lock can be had. The file gets its name
// when it is locked already: a folder that is just being made is never taken for one left behind.
#pragma once

#include <filesystem>

#include "base/temporary_folder.h"

namespace dgc::process {

class LaunchFolder {
 public:
  /// Makes dgc-launch-XXXXXX in `parent` (see TemporaryFolder), and removes those there that belong
  /// to this user and whose owner is gone. Throws Error(io).
  explicit LaunchFolder(const std::filesystem::path& parent = {});
  ~LaunchFolder();
  LaunchFolder(const LaunchFolder&) = delete;
  LaunchFolder& operator=(const LaunchFolder&) = delete;

  const std::filesystem::path& path() const { return folder_.path(); }

 private:
  TemporaryFolder folder_;
  int lock_ = -1;
};

}  // namespace dgc::process
