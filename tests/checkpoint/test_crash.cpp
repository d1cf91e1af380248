// Ranks that are killed while they save: at every step of it, and at random.
#include <signal.h>
#include <sys/wait.h>

#include <thread>

#include "dgc/collectives.h"
#include "support/checkpoints.h"

namespace dgc {
namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;
using test::Disks;
using test::run_ranks;

/// Not an Error, nor any std::exception: nothing on the way out takes it for a failure to report.
struct Killed {};

/// All that save() says it is about to do.
constexpr const char* kMoments[] = {"folder",    "probe",       "settle",   "directory",
                                    "rank file", "shared file", "manifest", "aside",
                                    "rename",    "look",        "prune",    "end"};

class CheckpointCrash : public test::CheckpointTest {
 protected:
  static constexpr int kRanks = 3;

  /// Saves, with `victim` gone at `moment`; -1 for all ranks at once. Whether the moment came.
  bool save_and_kill(Disks disks, std::uint64_t step, unsigned salt, const std::string& moment,
                     int victim) {
    std::atomic<bool> reached = false;
    run_ranks(kRanks, kTimeout, [&](Group& group) {
      try {
        test::save_at(group, folder(disks, group.rank()), step, 2, salt, [&](std::string_view now) {
          if (now != moment || (victim >= 0 && victim != group.rank())) return;
          reached = true;
          throw Killed();
        });
      } catch (const Killed&) {
      }
    });
    return reached;
  }

  /// What all ranks open: the same step and contents, or nothing.
  std::uint64_t open_any(Disks disks, const std::vector<unsigned>& salts) {
    std::vector<std::uint64_t> steps(kRanks, 0);
    const auto errors = run_ranks(kRanks, kTimeout, [&](Group& group) {
      test::check_opened(group, folder(disks, group.rank()),
                         steps[static_cast<std::size_t>(group.rank())], salts);
    });
    for (const auto& error : errors) EXPECT_FALSE(error) << error->what();
    for (const std::uint64_t step : steps) EXPECT_EQ(step, steps[0]);
    return steps[0];
  }
};

class CheckpointCrashOn : public CheckpointCrash, public testing::WithParamInterface<Disks> {};
INSTANTIATE_TEST_SUITE_P(Disks, CheckpointCrashOn,
                         testing::Values(Disks::shared, Disks::own, Disks::pairs),
                         testing::PrintToStringParamName());

TEST_P(CheckpointCrashOn, AtEveryMomentTheLastGoodOneStays) {
  const Disks disks = GetParam();
  for (const std::string moment : kMoments) {
    for (int victim = -1; victim < kRanks; ++victim) {
      SCOPED_TRACE(fmt::format("{}, rank {}", moment, victim));
      fs::remove_all(root_);
      fs::create_directory(root_);
      // The very first.
      save_and_kill(disks, 10, 0, moment, victim);
      const std::uint64_t first = open_any(disks, {0});
      EXPECT_TRUE(first == 0 || first == 10) << first;
      // A new step, with one before it.
      save_well(kRanks, disks, 20, 2);
      save_and_kill(disks, 30, 0, moment, victim);
      const std::uint64_t second = open_any(disks, {0});
      EXPECT_TRUE(second == 20 || second == 30) << second;
      // The same step again, twice, with other contents.
      save_well(kRanks, disks, 40, 2, 1);
      const bool reached = save_and_kill(disks, 40, 2, moment, victim);
      if (victim < 0) {
        EXPECT_TRUE(reached) << "a moment that never comes";
      }
      EXPECT_EQ(open_any(disks, {1, 2}), 40u);
      save_and_kill(disks, 40, 3, moment, victim);
      EXPECT_EQ(open_any(disks, {1, 2, 3}), 40u);
      // And everything can go on, and is cleared up.
      save_well(kRanks, disks, 50, 2);
      EXPECT_EQ(open_any(disks, {0}), 50u);
      for (int rank = 0; rank < kRanks; ++rank) {
        EXPECT_EQ(names_in(folder(disks, rank)),
                  (std::set<std::string>{"step-000000000040", "step-000000000050"}));
      }
      const auto errors = run_ranks(kRanks, kTimeout, [&](Group& group) {
        EXPECT_TRUE(checkpoint::open(group, folder(disks, group.rank()), 40));
      });
      for (const auto& error : errors) EXPECT_FALSE(error) << error->what();
      if (HasFailure()) return;
    }
  }
}

TEST_F(CheckpointCrash, EverythingThatAKillCanLeaveIsUnderstood) {
  // As directories: the save of step 20 got so far on each of two disks.
  save_well(2, Disks::own, 10, 1);
  save_well(2, Disks::own, 20, 2);
  const std::string step = "step-000000000020";
  const auto path = [&](int disk, const std::string& name) {
    return folder(Disks::own, disk) / name;
  };
  const auto opens = [&](std::uint64_t expected) { open_well(2, Disks::own, expected); };
  fs::rename(path(1, step), path(1, step + ".tmp"));
  opens(20);  // rank 1's disk did not get to rename, but it has everything
  const std::string manifest = read(path(1, step + ".tmp/manifest.json"));
  fs::resize_file(path(1, step + ".tmp/manifest.json"), 100);
  opens(10);  // half a manifest is none
  fs::remove(path(1, step + ".tmp/manifest.json"));
  opens(10);
  write(path(1, step + ".tmp/manifest.json"), manifest);
  fs::rename(path(0, step), path(0, step + ".tmp"));
  opens(10);  // nobody has begun to rename: whether all disks have it is not known
  fs::rename(path(0, step + ".tmp"), path(0, step + ".old"));
  opens(20);  // it was replaced on disk 0, so it was complete
  fs::rename(path(0, step + ".old"), path(0, step + ".gone"));
  opens(10);  // it was being removed
  fs::rename(path(0, step + ".gone"), path(0, step));
  fs::rename(path(1, step + ".tmp"), path(1, step));
  fs::create_directory(path(0, "step-000000000030"));
  fs::create_directory(path(0, "step-000000000030.tmp"));
  write(path(0, ".dgc-probe-0123456789abcdef-00001"), "");
  opens(20);
}

TEST_F(CheckpointCrash, KillNineAtRandomMoments) {
  std::mt19937 random(5);
  const fs::path path = root_ / "all";
  std::uint64_t last = 0;
  int between = 0;
  for (int kill = 0; kill < 20; ++kill) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      try {
        const auto groups = make_local_groups(1);
        // Every second step is saved twice.
        for (std::uint64_t step = last + 1;; ++step) {
          test::save_at(*groups[0], path, step, 2);
          if (step % 2 == 0) test::save_at(*groups[0], path, step, 2);
        }
      } catch (const std::exception& error) {
        fmt::print(stderr, "{}\n", error.what());
      }
      ::_exit(1);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(20'000 + random() % 60'000));
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "it ended by itself";
    const auto groups = make_local_groups(1);
    std::uint64_t step = 0;
    if (test::check_opened(*groups[0], path, step)) {
      EXPECT_GE(step, last);
      last = step;
    } else {
      EXPECT_EQ(last, 0u) << "a checkpoint is gone";
    }
    for (const std::string& name : fs::exists(path) ? names_in(path) : std::set<std::string>()) {
      between += name.find('.') != std::string::npos;
    }
  }
  EXPECT_GT(last, 0u) << "nothing was saved";
  EXPECT_GT(between, 0) << "no kill came in the middle of anything";
}

}  // namespace
}  // namespace dgc
