#include "dgc/schedule.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "support/helpers.h"

namespace dgc {
namespace {

using test::code_of;

TEST(Entries, RoundUpButNotBinaryNoise) {
  EXPECT_EQ(entries_at(0.001, 0), 0u);
  EXPECT_EQ(entries_at(0.001, 1), 1u);
  EXPECT_EQ(entries_at(0.001, 1000), 1u);
  EXPECT_EQ(entries_at(0.001, 1001), 2u);
  EXPECT_EQ(entries_at(0.001, 25'600'000), 25'600u);
  EXPECT_EQ(entries_at(0.07, 100), 7u);  // 0.07 * 100 is 7.000000000000001 in binary
  EXPECT_EQ(entries_at(1.0, 4'294'967'295u), 4'294'967'295u);
}

TEST(Schedule, PaperWarmUpIsFourStagesThenFinal) {
  const Schedule schedule = Schedule::paper(400);
  const double expected[] = {0.25, 0.0625, 0.015625, 0.004};
  for (std::int64_t step = 0; step < 400; ++step) {
    EXPECT_EQ(schedule.ratio_at(step), expected[step / 100]) << step;
  }
  EXPECT_EQ(schedule.ratio_at(400), 0.001);
  EXPECT_EQ(schedule.ratio_at(1'000'000), 0.001);
  EXPECT_EQ(schedule.warmup_steps(), 400);
}

TEST(Schedule, UnevenStagesCoverEveryStep) {
  const Schedule schedule = Schedule::paper(10);
  const double expected[] = {0.25,     0.25,     0.25,     0.0625, 0.0625,
                             0.015625, 0.015625, 0.015625, 0.004,  0.004};
  for (std::int64_t step = 0; step < 10; ++step)
    EXPECT_EQ(schedule.ratio_at(step), expected[step]) << step;
}

TEST(Schedule, ExponentialFallsByEqualFactors) {
  const Schedule schedule = Schedule::exponential(0.25, 0.001, 100);
  EXPECT_DOUBLE_EQ(schedule.ratio_at(0), 0.25);
  EXPECT_NEAR(schedule.ratio_at(50), std::sqrt(0.25 * 0.001), 1e-12);
  EXPECT_EQ(schedule.ratio_at(100), 0.001);
  for (int step = 1; step <= 100; ++step)
    EXPECT_LT(schedule.ratio_at(step), schedule.ratio_at(step - 1));
}

TEST(Schedule, ParsesWhatUsersWrite) {
  EXPECT_EQ(Schedule::parse("0.01", 0).ratio_at(5), 0.01);
  EXPECT_EQ(Schedule::parse("paper:4ep", 250).ratio_at(999), 0.004);
  EXPECT_EQ(Schedule::parse("paper:4ep", 250).ratio_at(1000), 0.001);
  const Schedule list = Schedule::parse("0.5,0.1,0.02:10", 0);
  EXPECT_EQ(list.ratio_at(9), 0.5);
  EXPECT_EQ(list.ratio_at(10), 0.1);
  EXPECT_EQ(list.ratio_at(20), 0.02);
  EXPECT_EQ(Schedule::parse("exp:0.25,0.01:0.5ep", 100).ratio_at(50), 0.01);
}

TEST(Schedule, RejectsNonsense) {
  for (const char* text : {"", "x", "0", "1.5", "-0.1", "nan", "0.5,0.1", "0.5,0.1:", "0.5,0.1:0",
                           "paper:-1", "paper:1ep", "exp:0.1:10", "0.1:ep", "0.1,,0.2:3"}) {
    EXPECT_EQ(code_of([&] { Schedule::parse(text, 0); }), ErrorCode::invalid_argument) << text;
  }
}

// What is printed is what is used: every line of the description is compared with ratio_at.
TEST(Schedule, DescriptionAgreesWithRatio) {
  const Schedule schedule = Schedule::paper(40);
  EXPECT_EQ(schedule.describe(),
            "steps 0 to 9: ratio 0.25 (sparsity 75 %)\n"
            "steps 10 to 19: ratio 0.0625 (sparsity 93.75 %)\n"
            "steps 20 to 29: ratio 0.015625 (sparsity 98.4375 %)\n"
            "steps 30 to 39: ratio 0.004 (sparsity 99.6 %)\n"
            "steps 40 and on: ratio 0.001 (sparsity 99.9 %)\n");
  EXPECT_EQ(Schedule(0.01).describe(), "steps 0 and on: ratio 0.01 (sparsity 99 %)\n");
}

/// The description of a list of stages, made step by step.
std::string step_by_step(const Schedule& schedule) {
  std::string text;
  const auto line = [&](std::int64_t begin, const std::string& end) {
    const double ratio = schedule.ratio_at(begin);
    text += fmt::format("steps {} {}: ratio {:.6g} (sparsity {:.6g} %)\n", begin, end, ratio,
                        100.0 * (1.0 - ratio));
  };
  std::int64_t begin = 0;
  for (std::int64_t s = 1; s <= schedule.warmup_steps(); ++s) {
    if (s < schedule.warmup_steps() && schedule.ratio_at(s) == schedule.ratio_at(begin)) continue;
    line(begin, "to " + std::to_string(s - 1));
    begin = s;
  }
  line(schedule.warmup_steps(), "and on");
  return text;
}

TEST(Schedule, DescribesStagesOfAnyLength) {
  for (std::int64_t steps = 1; steps <= 50; ++steps) {
    const Schedule paper = Schedule::paper(steps);  // also fewer steps than stages
    EXPECT_EQ(paper.describe(), step_by_step(paper)) << steps;
  }
  const Schedule repeated = Schedule::stages({0.5, 0.5, 0.1, 0.01}, 7, 0.01);
  EXPECT_EQ(repeated.describe(), step_by_step(repeated));
}

// No loop over steps, no overflow.
TEST(Schedule, LongSchedulesAreDescribedAtOnceAndComplete) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  const Schedule paper = Schedule::paper(kMost);
  EXPECT_EQ(
      paper.describe(),
      "steps 0 to 2305843009213693951: ratio 0.25 (sparsity 75 %)\n"
      "steps 2305843009213693952 to 4611686018427387903: ratio 0.0625 (sparsity 93.75 %)\n"
      "steps 4611686018427387904 to 6917529027641081855: ratio 0.015625 (sparsity 98.4375 %)\n"
      "steps 6917529027641081856 to 9223372036854775806: ratio 0.004 (sparsity 99.6 %)\n"
      "steps 9223372036854775807 and on: ratio 0.001 (sparsity 99.9 %)\n");
  EXPECT_EQ(paper.ratio_at(kMost - 1), 0.004);
  EXPECT_EQ(paper.ratio_at(kMost / 2 - 1), 0.0625);
  const std::string ramp = Schedule::exponential(0.25, 0.001, kMost).describe();
  EXPECT_EQ(std::count(ramp.begin(), ramp.end(), '\n'), 12);
}

TEST(Schedule, RefusesStepsThatCannotBeCounted) {
  for (const char* text : {"paper:1e17ep", "paper:1e300ep", "0.25,0.01:1e300ep", "paper:nanep",
                           "exp:0.25,0.01:infep", "0.5,0.4,0.3:9223372036854775807"}) {
    try {
      Schedule::parse(text, 250);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_NE(error.problem().find("more steps than can be counted"), std::string::npos)
          << error.what();
    }
  }
  EXPECT_EQ(Schedule::parse("0.5,0.3:9223372036854775807", 1).warmup_steps(),
            std::numeric_limits<std::int64_t>::max());
}

TEST(Schedule, CanBeRaisedFromAStepOn) {
  const Schedule plan = Schedule::stages({0.25, 0.05}, 10, 0.001);
  const Schedule raised = plan.raised(5, 0.1).raised(30, 0.01).raised(40, 0.0005);
  EXPECT_EQ(raised.ratio_at(4), 0.25);
  EXPECT_EQ(raised.ratio_at(9), 0.25) << "never less than planned";
  EXPECT_EQ(raised.ratio_at(10), 0.1);
  EXPECT_EQ(raised.ratio_at(29), 0.1);
  EXPECT_EQ(raised.ratio_at(30), 0.01);
  EXPECT_EQ(raised.ratio_at(40), 0.001) << "never less than planned";
  EXPECT_EQ(raised.warmup_steps(), 20);
  EXPECT_EQ(raised.raised(20, 0.02).ratio_at(30), 0.02) << "what came later is replaced";
  EXPECT_EQ(plan.ratio_at(10), 0.05) << "the plan itself stays";
  EXPECT_EQ(plan.raised(30, 0.01).describe(),
            plan.describe() + "steps 30 and on: ratio 0.01 at the least\n");
  for (const double ratio : {0.0, -1.0, 1.5}) EXPECT_THROW(plan.raised(0, ratio), Error);
}

TEST(Schedule, StagesOfThePaperEndAboveTheFinalRatio) {
  EXPECT_EQ(Schedule::paper_stages(), (std::vector<double>{0.25, 0.0625, 0.015625, 0.004}));
  EXPECT_EQ(Schedule::paper_stages(0.015625), (std::vector<double>{0.25, 0.0625}));
  EXPECT_TRUE(Schedule::paper_stages(0.25).empty());
}

}  // namespace
}  // namespace dgc
