// What is of shared memory alone: who may come in, messages larger than a ring, and that nothing is
// left behind. The rest is in test_processes.cpp.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <fstream>
#include <thread>

#include "dgc/collectives.h"
#include "engine/shared_memory.h"
#include "support/helpers.h"
#include "support/processes.h"

namespace dgc {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
namespace fs = std::filesystem;
using test::code_of;
using test::Ranks;

std::unique_ptr<Group> join(const fs::path& folder, int rank, int size,
                            std::chrono::milliseconds timeout) {
  return test::join("shared", folder, rank, size, timeout);
}

TEST(SharedGroup, MessagesLargerThanARingPassInBothDirectionsAtOnce) {
  const TemporaryFolder folder;
  constexpr std::size_t kBytes = 5'000'001;
  Ranks ranks(3, [&](int rank) {
    const auto group = join(folder.path(), rank, 3, 30s);
    for (int round = 0; round < 3; ++round) {
      const auto value = [&](int from, std::size_t i) {
        return static_cast<std::byte>(i * 7 + i / 251 + static_cast<std::size_t>(from + round));
      };
      std::vector<std::byte> mine(kBytes + static_cast<std::size_t>(rank));
      for (std::size_t i = 0; i < mine.size(); ++i) mine[i] = value(rank, i);
      const std::vector<Parcel> all = group->swap(mine, kBytes + 2);
      for (int r = 0; r < 3; ++r) {
        const auto& bytes = all[static_cast<std::size_t>(r)].bytes;
        if (bytes.size() != kBytes + static_cast<std::size_t>(r)) throw std::runtime_error("size");
        for (std::size_t i = 0; i < bytes.size(); ++i) {
          if (bytes[i] != value(r, i)) throw std::runtime_error("contents");
        }
      }
    }
  });
  const auto deadline = Clock::now() + 60s;
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(ranks.wait(rank, deadline), "");
}

// A sleeper that nobody wakes looks by itself after 100 ms: were it always so, these rounds would
// take three times as long as the test waits.
TEST(SharedGroup, NoWakeUpIsLost) {
  const TemporaryFolder folder;
  constexpr int kRounds = 3000;
  Ranks ranks(5, [&](int rank) {
    const auto group = join(folder.path(), rank, 5, 60s);
    for (int round = 0; round < kRounds; ++round) {
      const auto bytes = std::as_bytes(std::span(&round, 1));
      for (const Parcel& parcel : group->swap(bytes, sizeof round)) {
        if (std::memcmp(parcel.bytes.data(), &round, sizeof round) != 0) {
          throw std::runtime_error("another round");
        }
      }
    }
  });
  const auto deadline = Clock::now() + 100s;
  for (int rank = 0; rank < 5; ++rank) EXPECT_EQ(ranks.wait(rank, deadline), "");
}

TEST(SharedGroup, ARankThatIsTakenOrOfAnotherSizeIsRefused) {
  const TemporaryFolder folder;
  std::atomic<ErrorCode> first{ErrorCode::ok};
  // Ranks 0 and 1 wait for rank 2 while others are refused. Rank 0 gives up first.
  std::jthread zero([&] { first = code_of([&] { join(folder.path(), 0, 3, 1500ms); }); });
  std::jthread one([&] { code_of([&] { join(folder.path(), 1, 3, 20s); }); });
  for (int i = 0; i < 200 && !fs::exists(folder.path() / "dgc" / "shared"); ++i) {
    std::this_thread::sleep_for(5ms);
  }
  EXPECT_EQ(code_of([&] { join(folder.path(), 2, 2, 300ms); }), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of([&] { join(folder.path(), 1, 4, 300ms); }), ErrorCode::invalid_argument);
  std::this_thread::sleep_for(100ms);
  EXPECT_EQ(code_of([&] { join(folder.path(), 1, 3, 300ms); }), ErrorCode::invalid_argument);
  zero.join();
  EXPECT_EQ(first, ErrorCode::timeout);
}

TEST(SharedMemory, AddressesOfOtherMachinesAndOfThePastAreRefused) {
  const std::string address = [] {
    const detail::SharedMemory memory(2);
    const std::string mine = memory.address();
    const detail::SharedMemory again(mine, 1, 2);
    EXPECT_TRUE(memory.is_alive(1));
    EXPECT_TRUE(again.is_alive(0));
    const std::string elsewhere = "another-boot" + mine.substr(mine.find(' '));
    EXPECT_EQ(code_of([&] { detail::SharedMemory(elsewhere, 1, 2); }), ErrorCode::invalid_argument);
    EXPECT_EQ(code_of([&] { detail::SharedMemory("nonsense", 1, 2); }), ErrorCode::bad_length);
    return mine;
  }();
  EXPECT_EQ(code_of([&] { detail::SharedMemory(address, 1, 2); }), ErrorCode::peer_lost);
  // The same descriptor, for something else: it is left as it is.
  const TemporaryFolder folder;
  std::ofstream(folder.path() / "file") << std::string(5000, 'x');
  const auto words = address.find(' ');
  const int number = std::stoi(address.substr(address.find(' ', words + 1)));
  const int file = ::open((folder.path() / "file").c_str(), O_RDWR);
  ASSERT_EQ(::dup2(file, number), number);
  EXPECT_EQ(code_of([&] { detail::SharedMemory(address, 1, 2); }), ErrorCode::peer_lost);
  EXPECT_EQ(fs::file_size(folder.path() / "file"), 5000u);
  ::close(number);
  if (file != number) ::close(file);
}

TEST(SharedMemory, LimitsOfFileSizesAreKept) {
  const TemporaryFolder folder, other;
  const auto limited = [](const fs::path& place, rlim_t bytes, int rank) {
    const rlimit limit{bytes, bytes};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const auto group = join(place, rank, 2, 20s);
    const std::vector<std::byte> mine(300'000);
    all_gather(*group, mine);
  };
  Ranks ranks(3, [&](int rank) {
    // The last is alone: so little is not enough.
    if (rank < 2) return limited(folder.path(), 100'000, rank);
    const ErrorCode code = code_of([&] { limited(other.path(), 10'000, 0); });
    if (code != ErrorCode::io) throw std::runtime_error("not refused");
  });
  const auto deadline = Clock::now() + 40s;
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(ranks.wait(rank, deadline), "");
}

TEST(SharedMemory, ARankWhoseProcessEndsIsNotAlive) {
  const detail::SharedMemory memory(2);
  {
    Ranks other(1, [&](int) {
      const detail::SharedMemory mine(memory.address(), 1, 2);
      if (!mine.is_alive(0)) ::_exit(5);
      ::kill(::getpid(), SIGKILL);
    });
    EXPECT_EQ(other.wait(0, Clock::now() + 20s), "rank 0: signal 9");
  }
  EXPECT_FALSE(memory.is_alive(1));
}

TEST(SharedGroup, NothingIsLeftWhenAllAreKilled) {
  const auto names = [] {
    std::vector<std::string> all;
    for (const auto& entry : fs::directory_iterator("/dev/shm")) all.push_back(entry.path());
    std::sort(all.begin(), all.end());
    return all;
  };
  const TemporaryFolder folder;
  const auto before = names();
  {
    Ranks ranks(3, [&](int rank) {
      const auto group = join(folder.path(), rank, 3, 20s);
      std::ofstream(folder.path() / fmt::format("ready{}", rank));
      for (;;) barrier(*group);
    });
    const auto deadline = Clock::now() + 20s;
    for (int rank = 0; rank < 3; ++rank) {
      const fs::path ready = folder.path() / fmt::format("ready{}", rank);
      while (!fs::exists(ready) && Clock::now() < deadline) std::this_thread::sleep_for(2ms);
      ASSERT_TRUE(fs::exists(ready));
    }
    for (int rank = 0; rank < 3; ++rank) ranks.signal(rank, SIGKILL);
  }
  for (int rank = 0; rank < 3; ++rank) fs::remove(folder.path() / fmt::format("ready{}", rank));
  EXPECT_TRUE(fs::is_empty(folder.path()));
  EXPECT_EQ(names(), before);
}

}  // namespace
}  // namespace dgc
