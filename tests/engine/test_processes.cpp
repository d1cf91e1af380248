// Groups of processes, on every engine that has them: conformance; ranks that are killed, stopped
// or give up; and that nothing is left behind.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <array>
#include <thread>

#include "dgc/collectives.h"
#include "dgc/wire.h"
#include "support/conformance.h"
#include "support/processes.h"

namespace dgc {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
namespace fs = std::filesystem;

using test::join;
using test::Ranks;

const auto kEngines = testing::ValuesIn(test::process_engines());

class Worlds : public testing::TestWithParam<std::tuple<std::string, int>> {};
INSTANTIATE_TEST_SUITE_P(Engines, Worlds,
                         testing::Combine(kEngines, testing::Values(1, 2, 3, 4, 7, 8)),
                         [](const auto& test) {
                           return fmt::format("{}{}", std::get<0>(test.param),
                                              std::get<1>(test.param));
                         });

TEST_P(Worlds, ConformsAndLeavesNothingBehind) {
  const TemporaryFolder folder;
  const auto [engine, size] = GetParam();
  Ranks ranks(size, [&, engine = engine, size = size](int rank) {
    const auto group = join(engine, folder.path(), rank, size, 60s);
    test::check_conformance(*group);
  });
  const auto deadline = Clock::now() + 100s;
  for (int rank = 0; rank < size; ++rank) EXPECT_EQ(ranks.wait(rank, deadline), "");
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

struct Fault {
  const char* what;
  std::function<void(Group&)> collective;
  int signal;
  int victim;
};
void PrintTo(const Fault& fault, std::ostream* out) { *out << fault.what; }

std::vector<Fault> faults() {
  const auto gather = [](Group& group) {
    all_gather(group,
               std::vector<std::byte>(100'000 + 1000 * static_cast<std::size_t>(group.rank())));
  };
  const auto reduce = [](Group& group) {
    std::vector<float> values(50'000, 1.0f);
    all_reduce(group, values);
  };
  const auto spread = [](Group& group) {
    // Large enough that sends do not fit into the buffers of a stopped process.
    std::vector<std::byte> bytes(20'000'000);
    broadcast(group, bytes, 0);
    barrier(group);
  };
  std::vector<Fault> all;
  for (const int number : {SIGKILL, SIGSTOP}) {
    for (const int victim : {0, 2}) {
      all.push_back({"Barrier", [](Group& group) { barrier(group); }, number, victim});
      all.push_back({"AllGather", gather, number, victim});
      all.push_back({"AllReduce", reduce, number, victim});
      all.push_back({"Broadcast", spread, number, victim});
    }
  }
  return all;
}

class Faults : public testing::TestWithParam<std::tuple<std::string, Fault>> {};
INSTANTIATE_TEST_SUITE_P(Engines, Faults, testing::Combine(kEngines, testing::ValuesIn(faults())),
                         [](const auto& test) {
                           const Fault& fault = std::get<1>(test.param);
                           return fmt::format("{}{}{}Rank{}", std::get<0>(test.param), fault.what,
                                              fault.signal == SIGKILL ? "Killed" : "Stopped",
                                              fault.victim);
                         });

TEST_P(Faults, SurvivorsNameTheRankInTime) {
  const auto& [engine, fault] = GetParam();
  const TemporaryFolder folder;
  constexpr int kSize = 4;
  constexpr auto kTimeout = 1500ms;
  int ready[2];
  ASSERT_EQ(::pipe2(ready, O_CLOEXEC), 0);
  Ranks ranks(kSize, [&, &engine = engine, &fault = fault](int rank) {
    const auto group = join(engine, folder.path(), rank, kSize, 20s);
    barrier(*group);
    group->set_timeout(kTimeout);
    if (::write(ready[1], "r", 1) != 1) ::_exit(4);
    try {
      for (;;) fault.collective(*group);
    } catch (const Error& error) {
      const std::string text = error.what();
      const bool code = error.code() == ErrorCode::peer_lost ||
                        error.code() == ErrorCode::timeout ||
                        error.code() == ErrorCode::peer_failed;
      if (!code || text.find(fmt::format("rank {}", fault.victim)) == std::string::npos) throw;
    }
  });
  for (int rank = 0; rank < kSize; ++rank) {
    char byte = 0;
    pollfd readable{ready[0], POLLIN, 0};
    ASSERT_EQ(::poll(&readable, 1, 30'000), 1);
    ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  }
  std::this_thread::sleep_for(100ms);
  ranks.signal(fault.victim, fault.signal);
  const auto deadline = Clock::now() + 2 * kTimeout;
  for (int rank = 0; rank < kSize; ++rank) {
    if (rank == fault.victim) continue;
    EXPECT_EQ(ranks.wait(rank, deadline), "");
  }
  ::close(ready[0]);
  ::close(ready[1]);
}

class Processes : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Engines, Processes, kEngines, [](const auto& test) { return test.param; });

TEST_P(Processes, TheFirstCauseReachesEverybodyAndStays) {
  const TemporaryFolder folder;
  constexpr int kSize = 4;
  Ranks ranks(kSize, [&](int rank) {
    const auto group = join(GetParam(), folder.path(), rank, kSize, 20s);
    try {
      barrier(*group);
    } catch (const Error&) {
      if (rank == 2) throw;  // it may give up before the others have left this barrier
    }
    if (rank == 2) {
      group->fail(Error(ErrorCode::nonfinite_gradient, "compress", "'conv1'", "nan at step 7"));
      return;
    }
    if (rank == 3) std::this_thread::sleep_for(500ms);  // comes when the others have gone
    for (int again = 0; again < 2; ++again) {
      try {
        barrier(*group);
      } catch (const Error& error) {
        const std::string text = error.what();
        if (error.code() != ErrorCode::peer_failed || error.subject() != "rank 2" ||
            text.find("'conv1': nan at step 7") == std::string::npos) {
          throw;
        }
        continue;
      }
      throw std::runtime_error("the group went on");
    }
  });
  const auto deadline = Clock::now() + 15s;
  for (int rank = 0; rank < kSize; ++rank) EXPECT_EQ(ranks.wait(rank, deadline), "");
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST_P(Processes, RanksInDifferentCollectivesEndWithAnError) {
  // Gloo would abort the process if a message were longer than what the other side expects.
  const TemporaryFolder folder;
  Ranks ranks(2, [&](int rank) {
    const auto group = join(GetParam(), folder.path(), rank, 2, 5s);
    try {
      if (rank == 0) {
        // What comes, if anything does, is no message.
        const std::vector<std::byte> bytes(100);
        (void)CheckedMessage(group->swap(bytes, bytes.size()).at(1).bytes);
      } else {
        const std::string text = "something else";
        all_gather(*group, std::as_bytes(std::span(text)));
        barrier(*group);
      }
    } catch (const Error& error) {
      if (rank == 0) group->fail(error);
      return;
    }
    throw std::runtime_error("went on");
  });
  const auto deadline = Clock::now() + 15s;
  for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(ranks.wait(rank, deadline), "");
}

TEST_P(Processes, ARankThatNeverComesIsNamed) {
  const TemporaryFolder folder;
  try {
    join(GetParam(), folder.path(), 0, 2, 300ms);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::timeout);
    EXPECT_EQ(error.subject(), "rank 1");
  }
  // What that run left is not taken for a new one.
  try {
    join(GetParam(), folder.path(), 0, 2, 300ms);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << error.what();
  }
}

std::size_t entries(const char* folder) {
  return static_cast<std::size_t>(
      std::distance(fs::directory_iterator(folder), fs::directory_iterator{}));
}

TEST_P(Processes, ManyGroupsLeakNothing) {
  const TemporaryFolder folder;
  const auto round = [&](int i) {
    const std::string name = fmt::format("round{}", i);
    const auto run = [&](int rank) {
      barrier(*join(GetParam(), folder.path(), rank, 2, 20s, name));
    };
    std::jthread other([&] { run(1); });
    run(0);
    join(GetParam(), folder.path(), 0, 1, 20s, name);
  };
  round(-1);
  const std::size_t descriptors = entries("/proc/self/fd");
  const std::size_t threads = entries("/proc/self/task");
  for (int i = 0; i < 334; ++i) round(i);  // 1,002 groups
  EXPECT_EQ(entries("/proc/self/fd"), descriptors);
  // A joined thread may be listed a moment longer.
  for (int i = 0; i < 100 && entries("/proc/self/task") != threads; ++i) {
    std::this_thread::sleep_for(10ms);
  }
  EXPECT_EQ(entries("/proc/self/task"), threads);
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

}  // namespace
}  // namespace dgc
