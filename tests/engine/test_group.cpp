// Groups on threads: conformance, and what happens when a rank fails, leaves or stalls.
#include "dgc/group.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <thread>

#include "dgc/collectives.h"
#include "support/conformance.h"
#include "support/helpers.h"
#include "support/ranks.h"

namespace dgc {
namespace {

using namespace std::chrono_literals;

using test::run_ranks;

class LocalGroupTest : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, LocalGroupTest, testing::Values(1, 2, 3, 4, 7, 8));

TEST_P(LocalGroupTest, Conforms) {
  for (const auto& error : run_ranks(GetParam(), 20s, test::check_conformance)) {
    EXPECT_FALSE(error) << error->what();
  }
}

TEST(LocalGroup, TheFirstCauseReachesEverybodyAndStays) {
  const auto errors = run_ranks(4, 20s, [](Group& group) {
    barrier(group);
    if (group.rank() == 2) {
      group.fail(
          Error(ErrorCode::nonfinite_gradient, "compress", "'conv1'", "nan at index 5, step 7"));
    }
    try {
      barrier(group);
    } catch (const Error& first) {
      // Dead for good: the same code and cause again, and that it is not of this call.
      for (int again = 0; again < 2; ++again) {
        try {
          barrier(group);
          ADD_FAILURE() << "the group is dead";
        } catch (const Error& later) {
          EXPECT_EQ(later.code(), first.code());
          EXPECT_EQ(later.subject(), first.subject());
          EXPECT_NE(std::string(later.what()).find("nan at index 5, step 7"), std::string::npos);
          EXPECT_EQ(later.problem().find("the group ended earlier: "), 0u) << later.what();
          EXPECT_EQ(later.problem().rfind("the group ended earlier: "), 0u) << later.what();
          EXPECT_NE(later.hint().find("make a new group"), std::string::npos) << later.what();
        }
      }
      throw;
    }
  });
  for (std::size_t r = 0; r < 4; ++r) {
    ASSERT_TRUE(errors[r]) << r;
    EXPECT_NE(std::string(errors[r]->what()).find("nan at index 5, step 7"), std::string::npos)
        << errors[r]->what();
    EXPECT_EQ(errors[r]->code(), r == 2 ? ErrorCode::nonfinite_gradient : ErrorCode::peer_failed);
    EXPECT_TRUE(r == 2 || errors[r]->subject() == "rank 2");
  }
}

TEST(LocalGroup, ARankThatLeavesIsNamed) {
  const auto errors = run_ranks(3, 20s, [](Group& group) {
    barrier(group);
    if (group.rank() == 1) return;
    barrier(group);
  });
  EXPECT_FALSE(errors[1]);
  for (const std::size_t r : {0, 2}) {
    ASSERT_TRUE(errors[r]);
    EXPECT_NE(std::string(errors[r]->what()).find("rank 1"), std::string::npos)
        << errors[r]->what();
  }
}

TEST(LocalGroup, ARankThatStallsIsFoundWithinTheDeadline) {
  const auto start = std::chrono::steady_clock::now();
  const auto errors = run_ranks(3, 300ms, [](Group& group) {
    if (group.rank() == 1) std::this_thread::sleep_for(1500ms);
    barrier(group);
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, 10s);
  for (const std::size_t r : {0, 2}) {
    ASSERT_TRUE(errors[r]);
    EXPECT_NE(std::string(errors[r]->what()).find("rank 1"), std::string::npos)
        << errors[r]->what();
  }
}

TEST(LocalGroup, ASecondThreadIsRefusedAndTheFirstGoesOn) {
  auto groups = make_local_groups(2, std::chrono::seconds(10));
  std::byte received{};
  std::jthread first([&] {
    const Incoming receive{1, {&received, 1}};
    groups[0]->exchange({}, {&receive, 1});
  });
  std::byte other{};
  const Incoming receive{1, {&other, 1}};
  bool refused = false;
  // Whoever comes second is refused; give the other thread time to be first.
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  try {
    groups[0]->exchange({}, {&receive, 1});
  } catch (const Error& error) {
    refused = error.code() == ErrorCode::wrong_order;
  }
  EXPECT_TRUE(refused);
  const std::byte sent{42};
  const Outgoing send{0, {&sent, 1}};
  groups[1]->exchange({&send, 1}, {});
  first.join();
  EXPECT_EQ(received, sent);
  EXPECT_FALSE(groups[0]->failure());
}

TEST(LocalGroup, LyingLengthsAreRefusedBeforeAnythingIsAllocated) {
  const auto errors = run_ranks(2, 20s, [](Group& group) {
    const std::vector<std::byte> bytes(group.rank() == 1 ? 1000 : 1);
    all_gather(group, bytes, 500);
  });
  EXPECT_EQ(errors[0]->code(), ErrorCode::limit_exceeded);
}

TEST(LocalGroup, AThousandGroupsLeaveNothingBehind) {
  const auto open = [](const char* folder) {
    return std::distance(std::filesystem::directory_iterator(folder), {});
  };
  const auto round = [] { run_ranks(2, 20s, [](Group& group) { barrier(group); }); };
  round();
  const auto descriptors = open("/proc/self/fd");
  const auto threads = open("/proc/self/task");
  for (int i = 0; i < 500; ++i) round();
  EXPECT_EQ(open("/proc/self/fd"), descriptors);
  // A joined thread may be listed a moment longer.
  for (int i = 0; i < 100 && open("/proc/self/task") != threads; ++i) {
    std::this_thread::sleep_for(10ms);
  }
  EXPECT_EQ(open("/proc/self/task"), threads);
}

TEST(Range, PartsCoverEverythingOnce) {
  for (const std::size_t count : {0, 1, 5, 8, 1000, 1001}) {
    for (const int parts : {1, 2, 3, 7, 8, 2000}) {
      std::size_t next = 0;
      std::size_t smallest = count;
      std::size_t largest = 0;
      for (int i = 0; i < parts; ++i) {
        const Range range = part_of(count, parts, i);
        EXPECT_EQ(range.begin, next);
        next = range.end;
        smallest = std::min(smallest, range.size());
        largest = std::max(largest, range.size());
      }
      EXPECT_EQ(next, count);
      EXPECT_LE(largest - smallest, 1u);
    }
  }
}

}  // namespace
}  // namespace dgc
