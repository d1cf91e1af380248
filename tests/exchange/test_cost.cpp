// Predicted times, the choice by them, and the constants that are measured.
#include "exchange/cost.h"

#include <gtest/gtest.h>

#include <mutex>

#include "dgc/engines.h"
#include "exchange/choose.h"
#include "exchange/link_costs.h"
#include "support/ranks.h"

namespace dgc::exchange {
namespace {

using namespace std::chrono_literals;

/// Only what is set costs anything.
Costs free_costs() {
  Costs costs;
  costs.link = {.bytes_per_second = 1e18, .delay = 0s};
  costs.select = costs.encode = costs.entry = costs.place = costs.slice = 0.0;
  costs.dense = costs.dense16 = costs.byte = costs.message = costs.round = 0.0;
  return costs;
}

const Item kSparse{{1'000'000, 1000}, ValueType::fp16};
const Item kQuarter{{1'000'000, 250'000}, ValueType::fp16};
const Item kWhole{{1'000'000, 1'000'000}, ValueType::fp32};

TEST(Cost, RoundsAreDelays) {
  CostSetup setup{.workers = 4, .costs = free_costs()};
  setup.costs.link.delay = 25ms;
  const std::vector<Item> items = {kSparse, kWhole};
  EXPECT_NEAR(allgather_total(setup, items), 0.025, 1e-9);
  EXPECT_NEAR(dense_total(setup, items), 0.050, 1e-9);
  EXPECT_NEAR(owner_total(setup, items), 0.050, 1e-9);
}

TEST(Cost, BytesAreThoseOfTheLayout) {
  CostSetup setup{.workers = 4, .costs = free_costs()};
  setup.costs.link.bytes_per_second = 1e6;
  EXPECT_DOUBLE_EQ(sparse_seconds(setup, kSparse),
                   allgather_bytes(kSparse.load, ValueType::fp16, 4) / 1e6);
  EXPECT_DOUBLE_EQ(dense_seconds(setup, kSparse), 6.0);
  setup.dense_transport = ValueType::fp16;
  EXPECT_DOUBLE_EQ(dense_seconds(setup, kSparse), 3.0);
  EXPECT_NEAR(owner_total(setup, std::vector{kWhole}), 6.0, 0.01);
}

TEST(Cost, WorkIsByEntriesAndElements) {
  CostSetup setup{.workers = 4, .costs = free_costs()};
  setup.costs.select = 1.0;
  EXPECT_NEAR(allgather_total(setup, std::vector{kSparse}), 1e6, 1.0);
  EXPECT_NEAR(owner_total(setup, std::vector{kSparse}), 1.25e6, 1.0);
  EXPECT_NEAR(allgather_total(setup, std::vector{kWhole}), 0.0, 1.0) << "nothing to select";
  setup.costs = free_costs();
  setup.costs.encode = 1.0;
  EXPECT_NEAR(sparse_seconds(setup, kSparse), 1000, 1e-3);
  setup.costs.entry = 1.0;
  EXPECT_NEAR(sparse_seconds(setup, kSparse), 5000, 1e-3) << "its own, and everybody's";
  EXPECT_NEAR(owner_total(setup, std::vector{kSparse}), 1250 + 2000, 1e-3);
  EXPECT_NEAR(dense_seconds(setup, kSparse), 0.0, 1e-3);
  setup.costs.slice = 1.0;
  setup.costs.place = 10.0;
  EXPECT_NEAR(dense_seconds(setup, kSparse), 1e6 + 1e4, 1e-3);
}

TEST(Choose, DenseWhereItIsFasterAndWorthARound) {
  CostSetup setup{.workers = 4};
  setup.costs.link = {.bytes_per_second = 1e9, .delay = 100us};
  const std::vector<Item> items = {kSparse, kQuarter, kWhole};
  EXPECT_EQ(choose(setup, items, false).dense, (std::vector<bool>{false, true, true}));
  // No other mixture is predicted to be faster.
  const double best = choose(setup, items, false).seconds;
  for (unsigned mixture = 0; mixture < 8; ++mixture) {
    double seconds = round_seconds(setup) * (mixture == 0 ? 1.0 : 2.0);
    for (std::size_t i = 0; i < 3; ++i) {
      seconds += (mixture >> i & 1u) != 0 ? dense_seconds(setup, items[i])
                                          : sparse_seconds(setup, items[i]);
    }
    EXPECT_LE(best, seconds + setup.costs.select * 2e6 + 1e-12) << mixture;
  }
  // What a delay more would cost is more than all that is saved.
  setup.costs.link.delay = 1s;
  EXPECT_EQ(choose(setup, items, false).dense, (std::vector<bool>{false, false, false}));
  EXPECT_EQ(choose(setup, {}, true).dense.size(), 0u);
}

TEST(Choose, OwnerOnlyWhereItIsAllowed) {
  CostSetup setup{.workers = 64};
  setup.costs.link = {.bytes_per_second = 1e6, .delay = 1ms};
  const std::vector<Item> items = {kSparse};
  EXPECT_FALSE(choose(setup, items, false).owner);
  EXPECT_TRUE(choose(setup, items, true).owner);
  setup.workers = 2;
  setup.costs.link = {.bytes_per_second = 1e9, .delay = 25ms};
  EXPECT_FALSE(choose(setup, items, true).owner) << "it needs another round";
}

TEST(MeasuredCosts, AreTheSameOnAllRanksAndKnowTheLink) {
  std::mutex mutex;
  std::vector<Costs> all;
  const Link link{12.5e6, 20ms};
  const auto errors = test::run_ranks(3, 20s, [&](Group& group) {
    // Wrapping needs an owner: a view of all ranks is one.
    const auto slow = make_emulated_link(make_subgroup(group, {0, 1, 2}), link);
    const Traffic before = slow->traffic();
    const Costs mine = measure_costs(*slow, {.compress = {}, .elements = 100'000});
    EXPECT_LT((slow->traffic() - before).bytes_sent, 16u << 20);
    const std::lock_guard lock(mutex);
    all.push_back(mine);
  });
  for (const auto& error : errors) EXPECT_FALSE(error) << error->what();
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[0], all[1]);
  EXPECT_EQ(all[0], all[2]);
  EXPECT_TRUE(all[0].measured);
  // A link is never faster than it is; how much slower depends on who else uses the machine.
  EXPECT_GE(all[0].link.delay.count(), 0.9 * link.delay.count());
  EXPECT_LE(all[0].link.bytes_per_second, 16.1 * link.bytes_per_second);
  EXPECT_GT(all[0].link.bytes_per_second, 0.0);
  for (const double cost : {all[0].select, all[0].entry, all[0].slice}) EXPECT_GT(cost, 0.0);
}

TEST(MeasuredCosts, OneWorkerMeasuresNothing) {
  auto groups = make_local_groups(1);
  EXPECT_EQ(measure_costs(*groups[0], {}), Costs{});
  EXPECT_NE(costs_text(costs_over({12.5e6, 25ms})).find("assumed link 100 Mbps, 25 ms"),
            std::string::npos);
}

}  // namespace
}  // namespace dgc::exchange
