// The cost model of a hub: what it must get right whatever its constants are.
#include "plan/hub.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "plan/hub_table.h"

namespace dgc::plan {
namespace {

using hub::Down;

/// ResNet-50 on members' links of 20 Mbps, 25 ms away.
Scenario far_away(double compute = 0.25) {
  Scenario setup;
  setup.model = models::model_named("resnet50", "plan", "--model");
  setup.compute = compute;
  setup.bandwidth = 20e6;
  setup.latency = 0.025;
  return setup;
}

TEST(PlanHub, AMemberReceivesEverybodysMessageOrOne) {
  const Scenario setup = far_away();
  const double message = message_bytes(setup);
  const auto down = [&](Down way, int members) {
    return predict_hub(setup, 1e9, way, members).down_bytes;
  };
  EXPECT_DOUBLE_EQ(down(Down::select, 4), down(Down::select, 1000));
  EXPECT_NEAR(down(Down::select, 4), message, 1000.0);
  EXPECT_GT(down(Down::forward, 32), 32 * message);
  EXPECT_LT(down(Down::forward, 32), 32 * (message + 200.0));
  EXPECT_NEAR(predict_hub(setup, 1e9, Down::forward, 32).up_bytes, message, 1000.0);
}

TEST(PlanHub, ARoundIsTheSumOfItsParts) {
  const Scenario setup = far_away();
  for (const Down way : {Down::forward, Down::select}) {
    const HubRound r = predict_hub(setup, 1e9, way, 8);
    EXPECT_DOUBLE_EQ(r.round, r.compute + r.coding + r.delay + r.up + r.back + r.work);
    EXPECT_DOUBLE_EQ(r.delay, 0.05) << "one round trip";
    EXPECT_DOUBLE_EQ(r.speedup, 8 * 0.25 / r.round);
    EXPECT_DOUBLE_EQ(r.up, r.up_bytes * 8.0 / (20e6 * setup.payload));
    EXPECT_DOUBLE_EQ(r.back, r.down_bytes * 8.0 / (20e6 * setup.payload));
  }
}

TEST(PlanHub, MembersShareTheHubsLink) {
  const Scenario setup = far_away();
  // 50 members of 20 Mbps fill 1 Gbps.
  EXPECT_DOUBLE_EQ(predict_hub(setup, 1e9, Down::select, 50).up,
                   predict_hub(setup, 1e12, Down::select, 50).up);
  EXPECT_DOUBLE_EQ(predict_hub(setup, 1e9, Down::select, 100).up,
                   2.0 * predict_hub(setup, 1e12, Down::select, 100).up);
}

TEST(PlanHub, SaysWhatLimits) {
  EXPECT_EQ(predict_hub(far_away(60.0), 1e9, Down::forward, 8).limit, Limit::computing);
  EXPECT_EQ(predict_hub(far_away(), 1e9, Down::forward, 32).limit, Limit::member_link);
  EXPECT_EQ(predict_hub(far_away(), 1e8, Down::forward, 32).limit, Limit::hub_link);
  Scenario setup = far_away();
  setup.latency = 60.0;
  EXPECT_EQ(predict_hub(setup, 1e9, Down::forward, 8).limit, Limit::delay);
  setup = far_away(0.001);
  setup.model = {.name = "own", .parameters = 1000};
  setup.bandwidth = 1e12;
  EXPECT_EQ(predict_hub(setup, 1e15, Down::select, 1000).limit, Limit::hub_work);
}

TEST(PlanHub, WithMoreMembersNothingBecomesLess) {
  for (const Down way : {Down::forward, Down::select}) {
    double before = 0.0;
    for (const int members : {1, 2, 8, 31, 32, 33, 100, 1000, 65536}) {
      const HubRound r = predict_hub(far_away(), 1e9, way, members);
      EXPECT_GT(r.round, before) << members;
      EXPECT_GT(r.work, 0.0);
      before = r.round;
    }
  }
}

TEST(PlanHub, NamesWhatAutoTakesAndWhatIsFaster) {
  const HubPlan few = plan_hub(far_away(), 1e9, 8);
  EXPECT_EQ(few.automatic, Down::forward);
  EXPECT_EQ(few.faster, Down::select);
  EXPECT_NE(few.advice.find("auto takes forward; select is 2.4x as fast: --down select"),
            std::string::npos)
      << few.advice;
  const HubPlan many = plan_hub(far_away(), 1e9, 9);
  EXPECT_EQ(many.automatic, Down::select);
  EXPECT_EQ(many.faster, Down::select);
  EXPECT_NE(many.advice.find("auto takes select, "), std::string::npos) << many.advice;
  // Where computing takes the time, exact is as good.
  const HubPlan slow = plan_hub(far_away(100.0), 1e9, 9);
  EXPECT_EQ(slow.faster, Down::forward);
  EXPECT_EQ(slow.advice, "auto takes select; forward takes as long");
  EXPECT_DOUBLE_EQ(many.mesh.step, predict(far_away(), Method::allgather, 9).step);
}

TEST(PlanHub, TakesAsFewLocalStepsAsTheShareAllows) {
  Scenario setup = far_away();
  setup.values = ValueType::table2;
  const auto plans = plan_hub_local(setup, 1e9, 8, 0.05, {});
  ASSERT_EQ(plans.size(), 8u) << "two down-links, four ratios";
  for (const HubLocalPlan& plan : plans) {
    const auto h = static_cast<double>(plan.steps.local_steps);
    const double exchange = plan.round.round - 0.25;
    EXPECT_LE(exchange / (h * 0.25 + exchange), 0.05 * (1 + 1e-9));
    EXPECT_GT(exchange / ((h - 1) * 0.25 + exchange), 0.05);
    EXPECT_DOUBLE_EQ(plan.steps.received_bytes, plan.round.down_bytes / h);
  }
  EXPECT_EQ(plans[0].steps.title, "forward");
  EXPECT_EQ(plans[4].steps.title, "select");
  EXPECT_EQ(plan_hub_local(setup, 1e9, 8, 0.05, 0.01).size(), 2u);
}

TEST(PlanHub, TableAndJsonHaveTheSame) {
  const Scenario setup = far_away();
  const std::vector<HubPlan> plans = {plan_hub(setup, 1e9, 4), plan_hub(setup, 1e9, 32)};
  const auto tables = hub_tables(setup, 1e9, plans);
  ASSERT_EQ(tables.size(), 1u) << "one for each bandwidth";
  EXPECT_NE(tables[0].heading.find("limits with more than 50"), std::string::npos);
  ASSERT_EQ(tables[0].rows.size(), 7u);
  EXPECT_EQ(tables[0].rows[5][1], "hub select");
  EXPECT_EQ(tables[0].rows[5].back(), "<- auto <- faster");
  EXPECT_NE(tables[0].advice.find("32 members: " + plans[1].advice), std::string::npos);
  const nlohmann::json json = to_json(plans[1]);
  EXPECT_EQ(json["members"], 32);
  EXPECT_EQ(json["auto"], "select");
  EXPECT_EQ(json["rounds"][0]["limited_by"], "a member's link");
  EXPECT_EQ(json["rounds"][1]["down_bytes"], plans[1].select.down_bytes);
}

}  // namespace
}  // namespace dgc::plan
