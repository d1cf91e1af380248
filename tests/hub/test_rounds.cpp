// Rounds alone: all sequences of events up to a depth, with two members.
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "hub/rounds.h"
#include "support/helpers.h"

namespace dgc {
namespace {

using hub::Outcome;
using hub::RoundRules;
using hub::Rounds;

const std::string kNames[] = {"a", "b"};

/// Rounds, and what two members and a hub know around it.
struct World {
  explicit World(const RoundRules& rules) : rounds(rules) {}

  Rounds rounds;
  double now = 1.0;
  struct Side {
    bool here = false, outstanding = false, has_lease = true;
    std::uint64_t sequence = 0, base = 0;
  } sides[2];
  /// Messages that are in commits.
  std::set<std::pair<std::size_t, std::uint64_t>> committed;
  /// What was said of each message that is settled.
  std::map<std::pair<std::size_t, std::uint64_t>, Outcome> settled;
  std::uint64_t closed = 0;

  void settle(std::size_t i) {
    Side& side = sides[i];
    const Outcome outcome = rounds.outcome_of(kNames[i], side.sequence);
    if (!side.outstanding || (outcome != Outcome::committed && outcome != Outcome::taken_back)) {
      return;
    }
    const bool in = committed.contains({i, side.sequence});
    ASSERT_EQ(outcome == Outcome::committed, in) << "message " << side.sequence;
    settled[{i, side.sequence}] = outcome;
    side.outstanding = false;
  }

  /// As the hub does after each event.
  void close_due() {
    while (rounds.is_due(now)) {
      ASSERT_FALSE(rounds.inside().empty());
      const auto inside = rounds.inside();
      const auto names = rounds.close(now);
      ASSERT_EQ(rounds.closed(), ++closed);
      ASSERT_EQ(names.size(), inside.size());
      ASSERT_TRUE(rounds.inside().empty());
      for (const std::string& name : names) {
        const std::size_t i = name == "a" ? 0 : 1;
        const auto message = std::pair(i, inside.at(name).sequence);
        ASSERT_TRUE(committed.insert(message).second) << "committed twice";
        ASSERT_FALSE(settled.contains(message)) << "it was settled before";
      }
    }
  }

  /// False where it is not possible now.
  bool apply(int event) {
    const std::size_t i = event % 2;
    const std::string& name = kNames[i];
    Side& side = sides[i];
    switch (event / 2) {
      case 0:  // comes, or comes back as it is
        if (side.here) return false;
        side.here = true;
        rounds.arrive(name, now);
        rounds.told(name, now);
        break;
      case 1:  // its connection ends
        if (!side.here) return false;
        side.here = false;
        rounds.depart(name);
        break;
      case 2:  // hears of the last message, and is told of the commits
        if (!side.here || rounds.outcome_of(name, side.sequence) == Outcome::open) return false;
        settle(i);
        rounds.told(name, now);
        side.base = rounds.closed();
        break;
      case 3:  // sends what is due, or the same again
        if (!side.here || (!side.outstanding && !side.has_lease)) return false;
        if (!side.outstanding) ++side.sequence;
        send(i);
        break;
      case 4:  // dies: what is in the open round is taken out
        if (!side.here) return false;
        rounds.withdraw(name);
        rounds.arrive(name, now);
        rounds.told(name, now);
        settle(i);
        if (side.outstanding && !committed.contains({i, side.sequence})) {
          // The number is not used again.
          settled[{i, side.sequence}] = Outcome::taken_back;
          side.outstanding = false;
        }
        break;
      case 5:  // nothing is left for it
        if (!side.here || side.outstanding) return false;
        rounds.idle(name);
        side.has_lease = false;
        break;
      default:  // time passes
        now += i == 0 ? 0.3 : 40.0;
    }
    close_due();
    return true;
  }

  void send(std::size_t i) {
    Side& side = sides[i];
    const bool known = side.outstanding;
    const Outcome before = rounds.outcome_of(kNames[i], side.sequence);
    const std::uint64_t base = known ? side.base : rounds.members().at(kNames[i]).base;
    side.base = base;
    side.outstanding = true;
    const Outcome said = rounds.message(kNames[i], side.sequence, base, now);
    ASSERT_NE(said, Outcome::none);
    if (before != Outcome::none) {
      ASSERT_EQ(said, before) << "another word on the same message";
    }
    ASSERT_EQ(rounds.message(kNames[i], side.sequence, base, now), said);
  }

  /// Nobody is stuck: whoever is here hears of its message when all are in or time has passed.
  void end() {
    for (std::size_t i = 0; i < 2; ++i) {
      if (sides[i].here && sides[i].outstanding) send(i);
    }
    close_due();
    now += 1000.0;
    close_due();
    for (std::size_t i = 0; i < 2; ++i) {
      if (!sides[i].here || !sides[i].outstanding) continue;
      settle(i);
      ASSERT_FALSE(sides[i].outstanding) << kNames[i] << " waits for ever";
    }
    ASSERT_TRUE(rounds.inside().empty());
    for (const auto& [message, outcome] : settled) {
      ASSERT_EQ(outcome == Outcome::committed, committed.contains(message));
    }
  }
};

struct Search {
  int deepest = 0;
  std::uint64_t visited = 0;
  std::vector<int> path;

  void from(const World& world) {
    World last = world;
    last.end();
    ++visited;
    if (testing::Test::HasFatalFailure()) return;
    if (static_cast<int>(path.size()) == deepest) return;
    for (int event = 0; event < 14; ++event) {
      World next = world;
      path.push_back(event);
      if (next.apply(event) && !testing::Test::HasFatalFailure()) from(next);
      if (testing::Test::HasFatalFailure()) return;
      path.pop_back();
    }
  }
};

TEST(Rounds, AllSequencesOfEventsOfTwoMembers) {
  for (const RoundRules& rules :
       {RoundRules{}, RoundRules{.deadline = 0.2, .oldest = 1}, RoundRules{.oldest = 0},
        RoundRules{.deadline = 0.5, .patience = 1}}) {
    Search search{.deepest = test::repeats(7, 5)};
    search.from(World(rules));
    std::string path;
    for (const int event : search.path) path += std::to_string(event) + " ";
    ASSERT_FALSE(HasFailure()) << "after events " << path;
    EXPECT_GT(search.visited, 1000u);
  }
}

TEST(Rounds, MessagesAreRefusedThatCannotBe) {
  Rounds rounds({});
  rounds.arrive("a", 0.0);
  EXPECT_EQ(rounds.message("a", 5, 1, 0.0), Outcome::none) << "of a round to come";
  EXPECT_EQ(rounds.message("a", 5, 0, 0.0), Outcome::open);
  EXPECT_EQ(rounds.message("a", 6, 0, 0.0), Outcome::none) << "a second one";
  EXPECT_EQ(rounds.message("a", 4, 0, 0.0), Outcome::none) << "an earlier one";
  ASSERT_TRUE(rounds.is_due(0.0));
  rounds.close(0.0);
  EXPECT_EQ(rounds.message("a", 4, 0, 0.0), Outcome::none);
  EXPECT_EQ(rounds.message("a", 5, 0, 0.0), Outcome::committed);
  EXPECT_EQ(rounds.outcome_of("a", 4), Outcome::none);
  EXPECT_EQ(rounds.outcome_of("b", 1), Outcome::none);
}

TEST(Rounds, NothingIsCommittedAfterTheEnd) {
  Rounds rounds({});
  rounds.arrive("a", 0.0);
  rounds.arrive("b", 0.0);
  EXPECT_EQ(rounds.message("a", 1, 0, 0.0), Outcome::open);
  rounds.finish();
  EXPECT_EQ(rounds.outcome_of("a", 1), Outcome::taken_back);
  EXPECT_EQ(rounds.message("b", 1, 0, 0.0), Outcome::taken_back);
  EXPECT_FALSE(rounds.is_due(1e6));
}

TEST(Rounds, ARestartKeepsOutcomes) {
  Rounds rounds({});
  rounds.arrive("a", 0.0);
  rounds.message("a", 3, 0, 0.0);
  rounds.close(0.0);
  Rounds again({});
  again.resume(rounds.closed(), rounds.members());
  EXPECT_EQ(again.closed(), 1u);
  EXPECT_EQ(again.message("a", 3, 0, 5.0), Outcome::committed);
}

}  // namespace
}  // namespace dgc
