// Leases alone: all sequences of events up to a depth, with two members.
#include "hub/leases.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "support/helpers.h"

namespace dgc {
namespace {

using hub::Lease;
using hub::Leases;

const std::string kNames[] = {"a", "b"};

/// Two members and leases: each position is leased, given back and done as it should be.
struct Ground {
  Leases leases{5, 8};
  std::uint64_t sequence[2] = {0, 0};  // of the last lease
  std::uint64_t saved[2] = {0, 0};
  /// Who did what, so far as it counts: member, sequence.
  std::map<std::pair<int, std::uint64_t>, Lease> valid;

  bool apply(int event) {
    const int i = event % 2;
    const std::string& name = kNames[i];
    switch (event / 2) {
      case 0: {
        const Lease lease = leases.take(name, sequence[i] + 1, 3);
        if (lease.count == 0) return false;
        EXPECT_EQ(leases.take(name, sequence[i] + 1, 1), lease) << "another for the same message";
        EXPECT_TRUE(leases.has(name, sequence[i] + 1));
        valid[{i, ++sequence[i]}] = lease;
        break;
      }
      case 1:
        if (saved[i] == sequence[i]) return false;
        leases.saved(name, ++saved[i]);
        break;
      case 2:
        if (!leases.has_any(name)) return false;
        leases.release_after(name, saved[i]);
        std::erase_if(
            valid, [&](const auto& v) { return v.first.first == i && v.first.second > saved[i]; });
        saved[i] = sequence[i];
        break;
      default:
        if (i == 1) return false;
        leases = Leases::from(nlohmann::json::parse(leases.to_json().dump()));
    }
    return true;
  }

  void check() const {
    std::map<std::int64_t, int> times;
    std::int64_t done = 0, held = 0;
    for (const auto& [key, lease] : valid) {
      ASSERT_LE(lease.first + lease.count, 5);
      for (std::int64_t p = lease.first; p < lease.first + lease.count; ++p) {
        ASSERT_EQ(++times[static_cast<std::int64_t>(lease.epoch) * 5 + p], 1) << "leased twice";
      }
      (key.second <= saved[key.first] ? done : held) += lease.count;
    }
    ASSERT_EQ(leases.done(), done);
    ASSERT_EQ(leases.held_by("a") + leases.held_by("b"), held);
    ASSERT_EQ(leases.taken(), done + held);
    ASSERT_EQ(leases.finished(), done == 8);
  }

  /// One alone can always do the rest.
  void end() {
    for (const int i : {0, 1}) apply(4 + i);
    for (int n = 0; n < 20 && !leases.finished(); ++n) {
      apply(0);
      apply(2);
    }
    ASSERT_TRUE(leases.finished()) << "something is never done";
    check();
  }
};

std::uint64_t search(const Ground& ground, int depth) {
  Ground last = ground;
  last.end();
  if (depth == 0 || testing::Test::HasFatalFailure()) return 1;
  std::uint64_t visited = 1;
  for (int event = 0; event < 8; ++event) {
    Ground next = ground;
    if (!next.apply(event)) continue;
    next.check();
    visited += search(next, depth - 1);
    if (testing::Test::HasFatalFailure()) return visited;
  }
  return visited;
}

TEST(Leases, AllSequencesOfEventsOfTwoMembers) {
  EXPECT_GT(search({}, test::repeats(8, 6)), 5000u);
}

}  // namespace
}  // namespace dgc
