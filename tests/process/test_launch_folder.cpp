// Folders of launchers: removed by their owner, or by the next one when the owner was killed.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>

#include "process/launch_folder.h"
#include "support/processes.h"

namespace dgc::test {
namespace {

namespace fs = std::filesystem;

std::size_t count(const fs::path& parent) {
  return static_cast<std::size_t>(
      std::distance(fs::directory_iterator(parent), fs::directory_iterator()));
}

/// A process that makes a folder in `parent`, and is killed when it has.
void leave_folder(const fs::path& parent) {
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t pid = ::fork();
  if (pid == 0) {
    const process::LaunchFolder folder(parent);
    std::ofstream(folder.path() / "store") << "something";
    if (::write(ready[1], "x", 1) != 1) ::_exit(1);
    for (;;) ::pause();
  }
  char byte = 0;
  EXPECT_EQ(::read(ready[0], &byte, 1), 1);
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST(LaunchFolder, TheNextRemovesThoseWhoseOwnerWasKilled) {
  const TemporaryFolder parent;
  leave_folder(parent.path());
  EXPECT_EQ(count(parent.path()), 1u) << "a killed process cannot remove anything";
  {
    const process::LaunchFolder mine(parent.path());
    EXPECT_EQ(count(parent.path()), 1u);
    EXPECT_TRUE(fs::exists(mine.path()));
    const process::LaunchFolder another(parent.path());
    EXPECT_TRUE(fs::exists(mine.path())) << "its owner lives";
    EXPECT_EQ(count(parent.path()), 2u);
  }
  EXPECT_EQ(count(parent.path()), 0u);
}

TEST(LaunchFolder, LeavesWhatIsNotItsOwn) {
  const TemporaryFolder parent;
  fs::create_directories(parent.path() / "dgc-launch-made00");  // has no lock yet
  fs::create_directories(parent.path() / "other");
  std::ofstream(parent.path() / "other" / "lock") << "";
  std::ofstream(parent.path() / "dgc-launch-afile") << "";
  fs::create_directory_symlink(parent.path() / "other", parent.path() / "dgc-launch-link00");
  const process::LaunchFolder mine(parent.path());
  EXPECT_EQ(count(parent.path()), 5u);
  EXPECT_TRUE(fs::exists(parent.path() / "other" / "lock"));
}

}  // namespace
}  // namespace dgc::test
