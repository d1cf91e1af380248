// When rounds close: stragglers, late messages, quorum, deadlines.
#include <algorithm>
#include <memory>

#include "toy.h"

namespace dgc {
namespace {

using test::Pace;
using test::Toy;
using test::ToyPlan;

/// What rounds from `first` on took, in the middle.
double median_round(const Toy& toy, std::size_t first, std::size_t last) {
  std::vector<double> seconds;
  for (std::size_t i = first; i < last; ++i) seconds.push_back(toy.lines.at(i).seconds);
  std::sort(seconds.begin(), seconds.end());
  return seconds.at(seconds.size() / 2);
}

double mean_round(const Toy& toy, std::size_t first, std::size_t last) {
  double sum = 0.0;
  for (std::size_t i = first; i < last; ++i) sum += toy.lines.at(i).seconds;
  return sum / static_cast<double>(last - first);
}

/// A run with three usual members, and one more.
std::unique_ptr<Toy> run_with(ToyPlan plan, const Pace& fourth, std::uint64_t rounds = 60) {
  plan.epochs = 20.0;
  auto toy = std::make_unique<Toy>(plan);
  for (const char* name : {"a", "b", "c"}) toy->join(name);
  toy->join("d", fourth);
  EXPECT_TRUE(toy->run_rounds(rounds));
  return toy;
}

TEST(HubPace, AMemberThatComputesTenTimesSlowerCostsLittleAndCounts) {
  const auto usual = run_with({}, {});
  const auto slow = run_with({}, {.seconds_each = 0.010});
  EXPECT_LE(mean_round(*slow, 0, 60), 1.2 * mean_round(*usual, 0, 60));
  // It works on fewer examples, so that it is in time.
  EXPECT_GE(slow->committed("d"), 40u);
  slow->check();
}

TEST(HubPace, AMemberOnALinkTenTimesSlowerCostsLittleAndCounts) {
  // Three rounds late is the most for others; this one always is later.
  for (const double delay : {0.05, 0.2}) {
    const auto usual = run_with({}, {}, 140);
    const auto slow = run_with({}, {.delay = delay}, 140);
    EXPECT_LE(mean_round(*slow, 10, 140), 1.2 * mean_round(*usual, 10, 140)) << delay;
    EXPECT_GE(slow->committed("d"), 3u) << delay;
    slow->check();
  }
}

TEST(HubPace, TheRoundsBeforeASpeedIsKnownAreNotLongerThanTheLongest) {
  ToyPlan plan;
  plan.rules.longest = 0.5;
  const auto toy = run_with(plan, {.seconds_each = 1.0}, 10);
  for (const auto& line : toy->lines) EXPECT_LE(line.seconds, 0.5 + 0.1);
  toy->check();
}

TEST(HubPace, ALateMessageCountsForTheRoundThatIsOpen) {
  ToyPlan plan;
  plan.rules.deadline = 0.05;
  plan.rules.oldest = 3;
  const auto toy = run_with(plan, {.delay = 0.05}, 40);
  const auto late = std::ranges::any_of(toy->commits, [](const hub::Commit& commit) {
    return std::ranges::any_of(commit.parts, [&](const hub::Part& part) {
      return part.member == "d" && part.base + 1 < commit.round;
    });
  });
  EXPECT_TRUE(late);
  for (const hub::Commit& commit : toy->commits) {
    for (const hub::Part& part : commit.parts) EXPECT_LE(commit.round - 1 - part.base, 6u);
  }
  toy->check();
}

TEST(HubPace, AMessageThatIsTooOldIsTakenBackAndItsContentComesLater) {
  ToyPlan plan;
  plan.rules.deadline = 0.05;
  plan.rules.oldest = 1;
  auto toy = run_with(plan, {}, 5);
  const std::uint64_t before = toy->committed("d");
  toy->local->stall("d", 1.0);
  ASSERT_TRUE(toy->run_until(
      1.5, [&] { return toy->member("d").last_outcome() == hub::Outcome::taken_back; }));
  ASSERT_TRUE(toy->run_until(10.0, [&] { return toy->committed("d") > before; }));
  ASSERT_TRUE(toy->finish());
  EXPECT_EQ(toy->lost("d"), 0u);
  toy->check();
}

TEST(HubPace, ADeadlineWaitsForTheQuorum) {
  ToyPlan plan;
  plan.rules = {.quorum = 3, .deadline = 0.06};
  Toy toy(plan);
  toy.join("a");
  toy.join("b");
  ASSERT_FALSE(toy.run(20.0));
  EXPECT_TRUE(toy.lines.empty());
  toy.join("c", {.seconds_each = 0.002});
  ASSERT_TRUE(toy.run_rounds(5));
  for (const auto& line : toy.lines) EXPECT_GE(line.members, 3u);
  // Nobody waits for the fourth longer than the deadline says.
  toy.join("d", {.seconds_each = 0.1});
  ASSERT_TRUE(toy.run_rounds(10));
  ASSERT_TRUE(toy.finish());
  toy.check();
}

TEST(HubPace, AFixedQuorumDoesNotKeepTheLastExamplesBack) {
  ToyPlan plan{.positions = 33, .batch = 32, .epochs = 1.0};
  plan.rules.quorum = 2;
  Toy toy(plan);
  toy.join("a");
  toy.join("b", {.seconds_each = 0.01});
  ASSERT_TRUE(toy.finish());
  toy.check();
}

TEST(HubPace, AFixedDeadlineClosesWithWhoIsIn) {
  ToyPlan plan;
  plan.rules.deadline = 0.05;
  const auto toy = run_with(plan, {.seconds_each = 0.1}, 20);
  for (std::size_t i = 1; i < 10; ++i) EXPECT_LE(toy->lines[i].seconds, 0.05 + 0.01);
  EXPECT_LE(median_round(*toy, 0, 20), 0.05 + 0.01);
  toy->check();
}

TEST(HubPace, AMemberThatStopsAnsweringIsAwayAfterSomeRounds) {
  ToyPlan plan;
  plan.rules.patience = 2;
  const auto toy = run_with(plan, {}, 5);
  toy->local->stall("d", 1e6);
  ASSERT_TRUE(toy->run_rounds(10));
  EXPECT_FALSE(toy->local->hub()->rounds().members().at("d").active);
  toy->check({"d"});
}

}  // namespace
}  // namespace dgc
