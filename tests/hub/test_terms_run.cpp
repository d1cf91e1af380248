// What hub and members agree on, in whole runs: what goes down, where momentum is, buffers, local
// steps, the norm bound.
#include <algorithm>
#include <cstring>

#include "toy.h"

namespace dgc {
namespace {

using hub::Down;
using test::Toy;
using test::ToyPlan;

/// Trains with three members of whom one is killed and the hub too; returns the distance.
double trains(const ToyPlan& plan) {
  Toy toy(plan);
  for (const char* name : {"a", "b", "c"}) toy.join(name);
  EXPECT_TRUE(toy.run_rounds(12));
  toy.local->kill("b");
  EXPECT_TRUE(toy.run_rounds(3));
  toy.join("b");
  EXPECT_TRUE(toy.run_rounds(4));
  toy.local->kill_hub();
  EXPECT_FALSE(toy.run(1.0));
  toy.local->start_hub();
  EXPECT_TRUE(toy.finish());
  const double distance = toy.distance();
  toy.check();
  return distance;
}

TEST(HubTerms, EveryMomentumAndBothWaysDown) {
  for (const Down down : {Down::forward, Down::select}) {
    for (const MomentumCorrection correction : momentum_corrections()) {
      if (correction == MomentumCorrection::global && down == Down::forward) continue;
      for (const bool nesterov : {false, true}) {
        ToyPlan plan{.epochs = 8.0, .lr = 0.01};
        plan.terms.down = down;
        plan.terms.momentum_correction = correction;
        plan.terms.momentum = 0.8f;
        plan.terms.nesterov = nesterov;
        SCOPED_TRACE(std::string(name_of(down)) + " " + std::string(name_of(correction)) +
                     (nesterov ? " nesterov" : ""));
        EXPECT_LT(trains(plan), 0.25);
      }
    }
  }
}

TEST(HubTerms, WithoutMaskingAndWithValuesThatAreRounded) {
  for (const ValueType values : {ValueType::fp16, ValueType::int8, ValueType::table4}) {
    ToyPlan plan{.lr = 0.02};
    plan.terms.momentum = 0.5f;
    plan.terms.masking = values == ValueType::fp16;
    plan.terms.values = values;
    plan.terms.weight_decay = 1e-3f;
    SCOPED_TRACE(name_of(values));
    EXPECT_LT(trains(plan), 0.3);
  }
}

TEST(HubTerms, BuffersAreMeansOverExamples) {
  for (const Down down : {Down::forward, Down::select}) {
    ToyPlan plan{.evaluate_every = 4};
    plan.buffers = true;
    plan.terms.down = down;
    Toy toy(plan);
    for (const char* name : {"a", "b", "c"}) toy.join(name);
    ASSERT_TRUE(toy.finish());
    std::size_t with = 0;
    for (const hub::Commit& commit : toy.commits) {
      if (commit.buffers.empty()) continue;
      ++with;
      EXPECT_EQ(commit.round % 4, 0u);
      double sum = 0.0;
      for (const hub::Part& part : commit.parts) {
        sum += static_cast<double>(part.examples) * part.member.back();
      }
      float first = 0.0f;
      std::memcpy(&first, commit.buffers.data(), sizeof first);
      EXPECT_NEAR(first, sum / static_cast<double>(hub::examples_of(commit.parts)), 1e-4);
    }
    EXPECT_GE(with, toy.commits.size() / 4 - 1);
    EXPECT_GE(toy.evaluations.size(), toy.commits.size() / 4 - 1);
    toy.check();
  }
}

TEST(HubTerms, WhoHasSomethingToEvaluateWithIsAsked) {
  Toy toy({.evaluate_every = 4});
  for (const char* name : {"a", "c"}) toy.join(name, {.evaluates = false});
  toy.join("b");
  ASSERT_TRUE(toy.finish());
  EXPECT_GE(toy.evaluations.size(), toy.commits.size() / 4 - 1);
  for (const hub::EvaluationNote& note : toy.evaluations) EXPECT_EQ(note.member, "b");
  // And where nobody has, the run ends all the same.
  Toy blind({.evaluate_every = 4});
  for (const char* name : {"a", "b"}) blind.join(name, {.evaluates = false});
  ASSERT_TRUE(blind.finish());
  EXPECT_TRUE(blind.evaluations.empty());
  blind.check();
}

TEST(HubTerms, TheLastEvaluationComesWhateverIsLost) {
  const auto last_round = [](Toy& toy) {
    EXPECT_TRUE(toy.finish());
    EXPECT_EQ(toy.evaluations.size(), 1u);
    return toy.evaluations.empty() ? 0 : toy.evaluations.back().round;
  };
  const ToyPlan plan{.rounds = 6, .evaluate_every = 1000};
  const auto finished = [](Toy& toy) {
    for (const char* name : {"a", "b"}) toy.join(name);
    ASSERT_TRUE(toy.run_until(100.0, [&] { return toy.local->hub()->finished(); }));
  };
  {
    SCOPED_TRACE("the answer is lost");
    Toy toy(plan);
    finished(toy);
    for (const char* name : {"a", "b"}) toy.local->cut(name, 1.0);
    EXPECT_EQ(last_round(toy), 6u);
  }
  {
    SCOPED_TRACE("the hub is started again");
    Toy toy(plan);
    finished(toy);
    toy.local->kill_hub();
    ASSERT_FALSE(toy.run(0.1));
    toy.local->start_hub();
    EXPECT_EQ(last_round(toy), 6u);
  }
}

TEST(HubTerms, WhoLeavesBeforeItHasEvaluatedIsReplaced) {
  for (const char* leaves : {"a", "b"}) {
    Toy toy({.evaluate_every = 4});
    for (const char* name : {"a", "b"}) toy.join(name);
    ASSERT_TRUE(toy.run_rounds(4));
    // Both have an answer on the way, one of which asks.
    toy.local->leave(leaves);
    ASSERT_TRUE(toy.run_rounds(2));
    EXPECT_EQ(toy.evaluations.size(), 1u) << leaves;
  }
}

TEST(HubTerms, LocalSteps) {
  ToyPlan plan{.epochs = 8.0, .lr = 1.0, .inner_lr = 0.05, .ratio = 0.1};
  plan.terms.residual_decay = 0.95f;
  plan.local_steps = 4;
  EXPECT_LT(trains(plan), 0.2);
}

TEST(HubTerms, OneThatIsFarTooLargeIsScaled) {
  for (const Down down : {Down::forward, Down::select}) {
    ToyPlan plan;
    plan.terms.down = down;
    double distances[2];
    for (const bool bound : {false, true}) {
      plan.norm_bound = bound ? 2.0 : 0.0;
      Toy toy(plan);
      for (const char* name : {"a", "b", "c"}) toy.join(name);
      toy.join("d", {.wrong = -20.0f});
      EXPECT_TRUE(toy.finish());
      distances[bound ? 1 : 0] = toy.distance();
      bool scaled = false;
      for (const hub::Commit& commit : toy.commits) {
        for (const hub::Part& part : commit.parts) {
          if (part.factor == 1.0f) continue;
          EXPECT_EQ(part.member, "d");
          scaled = true;
        }
      }
      EXPECT_EQ(scaled, bound);
      toy.check();
    }
    EXPECT_LT(distances[1], 0.1 * distances[0]);
  }
}

TEST(HubTerms, NormBoundHoldsForAMemberThatIsAlone) {
  for (const bool bound : {true, false}) {
    ToyPlan plan{.epochs = 1.0, .ratio = 1.0};
    plan.norm_bound = bound ? 3.0 : 0.0;
    Toy toy(plan);
    toy.gradient = [](hub::Member& member, std::vector<float>& out) {
      const std::uint64_t next = member.sequence() + 1;
      // Twice as long is usual; two are a thousand times as long.
      const float length = next == 12 || next == 13 ? -1000.0f : next % 2 == 0 ? 2.0f : 1.0f;
      std::fill(out.begin(), out.end(), 0.01f * length);
    };
    toy.join("a");
    ASSERT_TRUE(toy.finish());
    for (const hub::Commit& commit : toy.commits) {
      ASSERT_EQ(commit.parts.size(), 1u);
      const bool wrong = commit.parts[0].sequence == 12 || commit.parts[0].sequence == 13;
      EXPECT_NEAR(commit.parts[0].factor, bound && wrong ? 3.0f / 1000.0f : 1.0f, 1e-6f)
          << "message " << commit.parts[0].sequence;
    }
    toy.check();
  }
}

TEST(HubTerms, PrivateDataGivesEachExampleItsWeight) {
  ToyPlan plan{.epochs = 4.0};
  plan.private_data = true;
  plan.rounds = 40;
  Toy toy(plan);
  for (const char* name : {"a", "b"}) toy.join(name);
  toy.join("c", {.seconds_each = 0.004});
  ASSERT_TRUE(toy.finish());
  EXPECT_EQ(toy.lines.size(), 40u);
  bool fewer = false;
  for (const hub::Commit& commit : toy.commits) {
    EXPECT_EQ(commit.share, 1.0f / static_cast<float>(hub::examples_of(commit.parts)));
    for (const hub::Part& part : commit.parts) fewer |= part.examples < 32;
  }
  EXPECT_TRUE(fewer);
  toy.check();
}

TEST(HubTerms, ARunEndsAfterItsRounds) {
  ToyPlan plan;
  plan.rounds = 7;
  Toy toy(plan);
  for (const char* name : {"a", "b"}) toy.join(name);
  // This one's message comes when all is over.
  toy.join("c", {.delay = 0.05});
  ASSERT_TRUE(toy.finish());
  EXPECT_EQ(toy.lines.size(), 7u);
  toy.check();
}

}  // namespace
}  // namespace dgc
