// Hub and members together, on a clock and links that are computed: who comes, goes and comes back.
#include <algorithm>

#include "hub/audit.h"
#include "toy.h"

namespace dgc {
namespace {

using test::Pace;
using test::Toy;
using test::ToyPlan;

/// A run long enough for something to happen in it.
Toy& started(Toy& toy, std::uint64_t rounds = 5) {
  for (const char* name : {"a", "b", "c"}) toy.join(name);
  EXPECT_TRUE(toy.run_rounds(rounds));
  return toy;
}

bool was_said(const Toy& toy, std::string_view what) {
  return std::ranges::any_of(toy.said,
                             [&](const std::string& line) { return line.find(what) != line.npos; });
}

TEST(LocalHub, MembersTrainTogetherToTheEnd) {
  Toy toy({});
  started(toy);
  ASSERT_TRUE(toy.finish());
  EXPECT_EQ(toy.local->hub()->leases()->done(), 4 * 960);
  EXPECT_EQ(toy.lines.size(), 4u * 960 / 32 / 3);
  EXPECT_LT(toy.distance(), 0.1);
  for (const auto& line : toy.lines) EXPECT_EQ(line.members, 3u);
  for (const char* name : {"a", "b", "c"}) EXPECT_EQ(toy.lost(name), 0u);
  toy.check();
}

TEST(LocalHub, AMemberThatIsKilledGoesBackToWhatItSaved) {
  Toy toy({});
  started(toy, 6);  // saved after 4
  toy.local->kill("b");
  ASSERT_TRUE(toy.run_rounds(3));
  toy.join("b");
  ASSERT_TRUE(toy.finish());
  EXPECT_GE(toy.lost("b"), 1u);
  EXPECT_LE(toy.lost("b"), 4u);
  EXPECT_GT(toy.committed("b"), 6u);
  EXPECT_LT(toy.distance(), 0.15);
  toy.check();
}

TEST(LocalHub, AMemberThatIsKilledAndNeverComesBackStopsNobody) {
  Toy toy({});
  started(toy, 6);
  toy.local->kill("b");
  // Its examples are waited for until it counts as lost.
  ASSERT_TRUE(toy.run_until(1000.0, [&] { return toy.local->hub()->finished(); }));
  toy.check({"b"});
}

TEST(LocalHub, AMemberThatLeavesLosesNothing) {
  Toy toy({});
  started(toy, 6);
  toy.local->leave("b");
  ASSERT_TRUE(toy.run_until(10.0, [&] { return toy.local->member("b") == nullptr; }));
  const std::uint64_t before = toy.committed("b");
  ASSERT_TRUE(toy.run_rounds(3));
  EXPECT_EQ(toy.committed("b"), before);
  EXPECT_EQ(toy.lines.back().members, 2u);
  toy.join("b");
  ASSERT_TRUE(toy.finish());
  EXPECT_GT(toy.committed("b"), before);
  EXPECT_EQ(toy.lost("b"), 0u);
  toy.check();
}

TEST(LocalHub, AMemberThatIsCutOffGoesOnWhereItWas) {
  Toy toy({});
  started(toy);
  toy.local->cut("b", 3.0);
  ASSERT_TRUE(toy.finish());
  EXPECT_EQ(toy.lost("b"), 0u);
  toy.check();
}

TEST(LocalHub, AMemberThatIsCutOffForLongLosesWhatOthersHaveDone) {
  Toy toy({.epochs = 40.0});
  started(toy, 6);
  toy.local->cut("b", 80.0);
  // The others do all that is left, and then what b had not saved, too.
  ASSERT_TRUE(toy.finish());
  EXPECT_TRUE(was_said(toy, "b: was silent for long"));
  EXPECT_GE(toy.lost("b"), 1u);
  toy.check();
}

TEST(LocalHub, AMemberThatIsKilledRightAfterItWentBackNamesItsLossOnce) {
  Toy toy({.epochs = 40.0});
  started(toy, 6);
  toy.local->cut("b", 80.0);
  ASSERT_TRUE(toy.run_until(200.0, [&] { return !toy.losses["b"].empty(); }));
  // The hub hears no more of it, and sends it back once more.
  toy.local->cut("b", 0.5);
  toy.local->kill("b");
  ASSERT_FALSE(toy.run(1.0));
  toy.join("b");
  ASSERT_TRUE(toy.finish());
  ASSERT_EQ(toy.losses["b"].size(), 1u);
  EXPECT_EQ(toy.losses["b"][0].to, 4u);
  EXPECT_EQ(toy.losses["b"][0].messages, toy.lost("b"));
  toy.check();
}

TEST(LocalHub, AStalledMemberIsWaitedForAWhileAndThenNotAnyMore) {
  Toy toy({.epochs = 40.0});
  started(toy);
  const double since = toy.local->now();
  toy.local->stall("b", 10.0);
  ASSERT_TRUE(toy.run_rounds(100));
  EXPECT_LT(toy.local->now() - since, 10.0);
  ASSERT_TRUE(toy.finish());
  EXPECT_EQ(toy.lost("b"), 0u);
  EXPECT_GT(toy.committed("b"), 20u);
  toy.check();
}

TEST(LocalHub, AHubThatIsKilledGoesOnWhereItWas) {
  for (const auto down : {hub::Down::forward, hub::Down::select}) {
    ToyPlan plan;
    plan.terms.down = down;
    Toy toy(plan);
    started(toy, 13);  // a snapshot is at 10
    toy.local->kill_hub();
    ASSERT_FALSE(toy.run(2.0));
    toy.local->start_hub();
    EXPECT_EQ(toy.local->hub()->round(), 13u);
    ASSERT_TRUE(toy.finish());
    for (const char* name : {"a", "b", "c"}) EXPECT_EQ(toy.lost(name), 0u);
    toy.check();
  }
}

TEST(LocalHub, MembersThatAreAheadOfARestoredHubTakeItsParameters) {
  for (const auto down : {hub::Down::forward, hub::Down::select}) {
    for (double pause = 0.0; pause < 0.04; pause += 0.007) {
      const TemporaryFolder backup("dgc-", test::fast_folder());
      ToyPlan plan;
      plan.terms.down = down;
      Toy toy(plan);
      started(toy, 7);
      toy.copy_hub(backup / "hub");
      ASSERT_TRUE(toy.run_rounds(8));
      ASSERT_FALSE(toy.run(pause));
      const std::uint64_t ahead = toy.local->hub()->round();
      toy.restore_hub(backup / "hub");
      EXPECT_EQ(toy.local->hub()->round(), 7u);
      // Replicas are compared with the hub's after every event.
      ASSERT_TRUE(toy.finish());
      ASSERT_EQ(toy.hub_backs.size(), 3u);
      for (const auto& [name, back] : toy.hub_backs) {
        EXPECT_GE(back.from + 1, ahead);
        EXPECT_LT(back.to, back.from);
        EXPECT_GT(toy.committed(name), 20u);
      }
      EXPECT_LT(toy.distance(), 0.15);
      if (HasFailure()) FAIL() << "the hub was restored after " << pause << " s";
    }
  }
}

TEST(LocalHub, AHubThatStartsLateOnItsClockGivesMembersTheTimeToComeBack) {
  Toy toy({.epochs = 40.0, .lost_after = 30.0});
  started(toy);
  // Its clock may begin anywhere, at the start of the machine, say.
  toy.local->leave("a");
  ASSERT_FALSE(toy.run(0.2));
  toy.local->kill_hub();
  ASSERT_FALSE(toy.run(100.0));
  toy.local->start_hub();
  ASSERT_TRUE(toy.finish());
  for (const char* name : {"b", "c"}) EXPECT_EQ(toy.lost(name), 0u);
  toy.join("a");
  toy.check();
}

TEST(LocalHub, AMemberComesBackAfterItWasKilledAndTheHubToo) {
  // The hub dies between the two answers that a member needs when it comes back.
  for (double pause = 0.0; pause < 0.012; pause += 0.0005) {
    Toy toy({.epochs = 1.0});
    started(toy, 3);
    toy.local->kill("b");
    // The others have something to do still.
    ASSERT_FALSE(toy.run(0.05));
    toy.join("b");
    ASSERT_FALSE(toy.run(pause));
    toy.local->kill_hub();
    ASSERT_FALSE(toy.run(0.1));
    toy.local->start_hub();
    ASSERT_TRUE(toy.finish());
    toy.check();
    if (HasFailure()) FAIL() << "the hub died " << pause << " s after b came back";
  }
}

TEST(LocalHub, AnAnswerToAMemberThatWasSilentForLongIsLost) {
  // It saved what the hub does not know of, counts as lost, joins, and the answer never arrives.
  for (double pause = 0.0; pause < 0.006; pause += 0.0005) {
    Toy toy({.epochs = 4.0});
    started(toy, 4);
    ASSERT_TRUE(toy.run_until(100.0, [&] {
      return toy.member("b").sequence() == 8 && !toy.member("b").is_outstanding();
    }));
    toy.local->kill("b");
    ASSERT_FALSE(toy.run(60.0));
    toy.join("b");
    ASSERT_FALSE(toy.run(pause));
    toy.local->cut("b", 1.0);
    ASSERT_TRUE(toy.finish());
    toy.check();
    if (HasFailure()) FAIL() << "cut off " << pause << " s after b came back";
  }
}

TEST(LocalHub, WhoJoinedBeforeThereWereParametersTakesThoseOfTheRun) {
  // The hub dies at any moment while three members give and take the first parameters.
  for (double pause = 0.001; pause < 0.010; pause += 0.0005) {
    Toy toy({.epochs = 1.0});
    toy.join("a");
    toy.join("b", {.delay = 0.0015});
    toy.join("c", {.delay = 0.002});
    ASSERT_FALSE(toy.run(pause));
    toy.local->kill_hub();
    ASSERT_FALSE(toy.run(0.1));
    toy.local->start_hub();
    ASSERT_TRUE(toy.finish());
    toy.check();
    if (HasFailure()) FAIL() << "the hub died after " << pause << " s";
  }
}

TEST(LocalHub, OneMemberGivesTheParametersAndAnotherIfItDies) {
  Toy toy({});
  const auto givers = [&] {
    return std::ranges::count_if(toy.said, [](const std::string& line) {
      return line.find("gave the initial parameters") != line.npos;
    });
  };
  toy.join("a", {.bytes_per_second = 100.0});  // takes long to send them
  toy.run(10.0);
  toy.join("b");
  toy.join("c");
  toy.run(5.0);
  EXPECT_EQ(givers(), 0);
  toy.local->kill("a");
  toy.run(5.0);
  EXPECT_EQ(givers(), 1);
  EXPECT_GT(toy.local->hub()->round(), 0u);
  toy.join("a");
  ASSERT_TRUE(toy.finish());
  EXPECT_EQ(givers(), 1);
  toy.check();
}

TEST(LocalHub, NoMembersAreAPause) {
  Toy toy({});
  started(toy);
  for (const char* name : {"a", "b", "c"}) toy.local->leave(name);
  ASSERT_TRUE(toy.run_until(10.0, [&] {
    return toy.local->member("a") == nullptr && toy.local->member("b") == nullptr &&
           toy.local->member("c") == nullptr;
  }));
  const std::size_t rounds = toy.lines.size();
  ASSERT_FALSE(toy.run(1000.0));
  EXPECT_EQ(toy.lines.size(), rounds);
  toy.join("d");
  ASSERT_TRUE(toy.run_rounds(3));
  EXPECT_LT(toy.lines[rounds].seconds, 1.0) << "the pause counts as a round";
  toy.join("a");
  ASSERT_TRUE(toy.finish());
  toy.check();
}

TEST(LocalHub, WhoComesLaterTakesASnapshotAndTheCommitsSince) {
  Toy toy({.snapshot_every = 10});
  started(toy, 15);
  toy.join("d");
  ASSERT_TRUE(toy.finish());
  EXPECT_GT(toy.committed("d"), 5u);
  toy.check();
}

TEST(LocalHub, WhoMissedMoreThanTheHubKeepsTakesASnapshot) {
  ToyPlan plan{.epochs = 40.0, .snapshot_every = 5};
  plan.lost_after = 1000.0;
  Toy toy(plan);
  started(toy, 6);
  toy.local->cut("b", 40.0);
  ASSERT_TRUE(toy.run_rounds(60));
  ASSERT_GT(toy.journal->first_commit().value(), 20u);
  ASSERT_TRUE(toy.finish());
  EXPECT_EQ(toy.lost("b"), 0u);
  toy.check();
}

TEST(LocalHub, ARevokedTokenEndsItsMemberAlone) {
  Toy toy({});
  started(toy, 6);
  ASSERT_TRUE(toy.journal->revoke_token("b"));
  EXPECT_THROW(toy.finish(), Error);
  toy.local->kill("b");
  ASSERT_TRUE(toy.run_until(1000.0, [&] { return toy.local->hub()->finished(); }));
  toy.check({"b"});
}

TEST(LocalHub, ACommitOfAHubThatSelectsIsAsLargeForManyMembers) {
  std::size_t sizes[2] = {0, 0};
  for (const int members : {2, 25}) {
    ToyPlan plan{.positions = 3200, .epochs = 6.0};
    plan.terms.down = hub::Down::select;
    Toy toy(plan);
    for (int i = 0; i < members; ++i) toy.join("m" + std::to_string(i));
    ASSERT_TRUE(toy.run_rounds(12));
    EXPECT_EQ(toy.commits.back().parts.size(), static_cast<std::size_t>(members));
    for (std::uint64_t round = 1; round <= 12; ++round) {
      std::size_t& most = sizes[members == 2 ? 0 : 1];
      most = std::max(most, toy.journal->commit_packet(round)->size());
    }
    ASSERT_TRUE(toy.finish());
    toy.check();
    const hub::Audit found = hub::audit(toy.folder() / "hub");
    EXPECT_EQ(found.members.size(), static_cast<std::size_t>(members));
    EXPECT_EQ(found.hash, toy.local->hub()->replica()->hash());
    EXPECT_GT(found.examples, 0u);
  }
  // The message itself is not always of the same size.
  EXPECT_LT(sizes[1], sizes[0] + 25);
}

TEST(LocalHub, ManyMembersComeAtOnce) {
  Toy toy({.positions = 3200, .epochs = 2.0});
  for (int i = 0; i < 25; ++i) toy.join("m" + std::to_string(i), {.delay = 0.001 * (1 + i % 5)});
  ASSERT_TRUE(toy.finish());
  toy.check();
}

}  // namespace
}  // namespace dgc
