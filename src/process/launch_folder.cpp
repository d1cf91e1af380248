#include "process/launch_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <system_error>

namespace dgc::process {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPrefix = "dgc-launch-";
constexpr const char* kLock = "lock";

bool is_own_folder(const fs::path& path) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode) &&
         status.st_uid == ::geteuid();
}

/// Removes the folder if its lock can be had. One without a lock may be just being made.
void remove_if_left(const fs::path& folder) {
  const int lock = ::open((folder / kLock).c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (lock < 0) return;
  std::error_code ignored;
  if (::flock(lock, LOCK_EX | LOCK_NB) == 0) fs::remove_all(folder, ignored);
  ::close(lock);
}

/// Nothing here is worth ending a run for.
void remove_left_folders(const fs::path& parent) {
  std::error_code error;
  for (auto entry = fs::directory_iterator(parent, error); !error && entry != fs::end(entry);
       entry.increment(error)) {
    const bool ours = entry->path().filename().string().starts_with(kPrefix);
    if (ours && is_own_folder(entry->path())) remove_if_left(entry->path());
  }
}

}  // namespace

LaunchFolder::LaunchFolder(const fs::path& parent) : folder_(kPrefix, parent) {
  remove_left_folders(path().parent_path());
  const fs::path unnamed = path() / (std::string(kLock) + ".new");
  lock_ = ::open(unnamed.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  // Where locks do not work, the folder stays without one, and nobody else removes it.
  if (lock_ >= 0 && ::flock(lock_, LOCK_EX | LOCK_NB) == 0) {
    std::error_code ignored;
    fs::rename(unnamed, path() / kLock, ignored);
  }
}

// The folder goes after the lock's file is closed: nobody else can take it meanwhile but to remove
// it too.
LaunchFolder::~LaunchFolder() {
  if (lock_ >= 0) ::close(lock_);
}

}  // namespace dgc::process
