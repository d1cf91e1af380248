// What is free to send, and a ratio that changes while a run goes on.
#include "exchange/free_ratio.h"

#include <gtest/gtest.h>

#include "support/helpers.h"
#include "support/ranks.h"

namespace dgc::exchange {
namespace {

using namespace std::chrono_literals;
using test::run_ranks;

const std::vector<TensorSpec> kModel = {TensorSpec::of("fc1", {1000, 1000}),
                                        TensorSpec::of("fc2", {1000, 1000})};
const Buckets kBuckets = {{0}, {1}};
constexpr double kLeast = 0.001;

/// Where only moving costs anything.
double free_at(double bytes_per_second, const FreeTime& time, Algorithm algorithm,
               double encode = 0.0) {
  ExchangeOptions options{.algorithm = algorithm};
  CostSetup setup{.workers = 4};
  setup.costs = {.link = {.bytes_per_second = bytes_per_second, .delay = 1ms}};
  setup.costs.select = setup.costs.entry = setup.costs.place = setup.costs.slice = 0.0;
  setup.costs.dense = setup.costs.dense16 = setup.costs.byte = setup.costs.message = 0.0;
  setup.costs.round = 0.0;
  setup.costs.encode = encode;
  const CompressOptions compress{.values = ValueType::fp16};
  return free_ratio({.model = kModel,
                     .buckets = kBuckets,
                     .compress = compress,
                     .options = options,
                     .setup = setup},
                    time, kLeast);
}

TEST(FreeRatio, FollowsTheLink) {
  const FreeTime time{.compute = 0.1, .hidden = 0.05};
  for (const Algorithm algorithm : {Algorithm::allgather, Algorithm::owner}) {
    EXPECT_EQ(free_at(1e12, time, algorithm), 0.25);
    EXPECT_NEAR(free_at(1e4, time, algorithm), kLeast, 0.1 * kLeast) << "5 % of the step more";
    double before = 0.0;
    for (const double rate : {1e6, 4e6, 1.6e7}) {
      const double ratio = free_at(rate, time, algorithm);
      EXPECT_GT(ratio, before) << rate;
      EXPECT_LT(ratio, 0.25) << rate;
      before = ratio;
    }
  }
}

TEST(FreeRatio, IsWhatEndsWithBackwardAndALittle) {
  // All-gather of r · 2 million entries from 3 others, in 50 ms of backward and 5 % of the step.
  const FreeTime time{.compute = 0.1, .hidden = 0.05};
  const double ratio = free_at(1e7, time, Algorithm::allgather);
  const Load load{1'000'000, entries_at(ratio, 1'000'000)};
  const double seconds = 2 * (0.001 + allgather_bytes(load, ValueType::fp16, 4) / 1e7);
  EXPECT_NEAR(seconds, 0.05 + 0.05 * 0.1, 0.002);
  EXPECT_LT(free_at(1e7, {.compute = 0.1, .hidden = 0.0}, Algorithm::allgather), ratio / 3);
}

TEST(FreeRatio, CodingHidesBehindNothing) {
  const FreeTime time{.compute = 0.1, .hidden = 0.09};
  EXPECT_EQ(free_at(1e12, time, Algorithm::allgather), 0.25);
  // 2 million entries of 100 ns in a quarter: 50 ms. 5 % of the step are a tenth of that.
  EXPECT_NEAR(free_at(1e12, time, Algorithm::allgather, 100e-9), 0.027, 0.003);
}

TEST(RaisedRatio, HoldsFromItsStepOnAllRanks) {
  for (const Algorithm algorithm : {Algorithm::automatic, Algorithm::allgather, Algorithm::owner}) {
    const auto errors = run_ranks(3, 60s, [&](Group& group) {
      const std::vector<TensorSpec> model = {test::sparse("conv", 3000)};
      Exchange exchange(group, model, {.schedule = Schedule(0.01)},
                        {.algorithm = algorithm, .link = parse_link("link", "1Gbps,1ms")});
      std::mt19937 random(static_cast<std::uint32_t>(group.rank()));
      std::vector<float> target(3000);
      const std::vector<std::span<float>> targets = {target};
      for (int step = 0; step < 8; ++step) {
        const test::Tensors g = test::gaussian(model, random);
        exchange.step(std::vector<Gradient>{{0, g[0]}}, targets, 1.0f);
        const std::uint64_t expected = step < 4 ? 30 : 600;
        EXPECT_EQ(exchange.stats()[0].target, expected) << "step " << step;
        if (step == 2) exchange.raise_ratio(4, 0.2);
      }
    });
    for (const auto& error : errors) EXPECT_FALSE(error) << error->what();
  }
}

TEST(RaisedRatio, IsRefusedWhereRoomIsMadeAlready) {
  const auto errors = run_ranks(2, 60s, [&](Group& group) {
    const std::vector<TensorSpec> model = {test::sparse("conv", 3000)};
    Exchange exchange(group, model, {.schedule = Schedule(0.01)},
                      {.algorithm = Algorithm::allgather});
    exchange.raise_ratio(0, 0.02);  // nothing was done yet: a run that is resumed
    std::vector<float> gradient(3000, 1.0f);
    std::vector<float> target(3000);
    const std::vector<std::span<float>> targets = {target};
    exchange.step(std::vector<Gradient>{{0, gradient}}, targets, 1.0f);
    EXPECT_EQ(exchange.stats()[0].target, 60u);
    EXPECT_THROW(exchange.raise_ratio(1, 0.05), Error);
    EXPECT_THROW(exchange.raise_ratio(2, 0.0), Error);
    exchange.submit(std::vector<Gradient>{{0, gradient}});
    EXPECT_THROW(exchange.raise_ratio(3, 0.05), Error) << "within a step";
    const Collected sum = exchange.finish();
    exchange.apply(sum, targets, 1.0f);
    exchange.commit(sum, targets);
  });
  for (const auto& error : errors) EXPECT_FALSE(error) << error->what();
}

}  // namespace
}  // namespace dgc::exchange
