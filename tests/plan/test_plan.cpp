// The cost model: what it must get right whatever its constants are.
#include <gtest/gtest.h>

#include <functional>

#include "base/quantity.h"
#include "dgc/error.h"
#include "exchange/layout.h"
#include "plan/advice.h"
#include "plan/chart.h"
#include "plan/cost.h"
#include "plan/costs_file.h"
#include "plan/local.h"
#include "support/scratch.h"

namespace dgc::plan {
namespace {

Scenario setup_for(const char* model, double compute = 0.25, double bandwidth = 1e9) {
  Scenario setup;
  setup.model = models::model_named(model, "plan", "--model");
  setup.compute = compute;
  setup.bandwidth = bandwidth;
  return setup;
}

std::string error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
  return "no error";
}

TEST(PlanQuantity, UnitsAreRequiredAndErrorsShowTheRightForm) {
  EXPECT_DOUBLE_EQ(parse_bandwidth("--bandwidth", "1Gbps"), 1e9);
  EXPECT_DOUBLE_EQ(parse_bandwidth("--bandwidth", " 100 Mbit/s "), 1e8);
  EXPECT_DOUBLE_EQ(parse_bandwidth("--bandwidth", "12.5MB/s"), 1e8);
  EXPECT_DOUBLE_EQ(parse_duration("--compute", "120ms"), 0.12);
  EXPECT_DOUBLE_EQ(parse_duration("--latency", "0", true), 0.0);
  const auto bandwidth = [](const char* text) {
    return error_of([&] { parse_bandwidth("--bandwidth", text); });
  };
  EXPECT_NE(bandwidth("1").find("--bandwidth '1': has no unit (1Gbps?)"), std::string::npos);
  EXPECT_NE(bandwidth("-3Gbps").find("is negative (must be more than 0, such as 3Gbps)"),
            std::string::npos);
  EXPECT_NE(bandwidth("0Gbps").find("is zero"), std::string::npos);
  EXPECT_NE(bandwidth("1Gbqs").find("there is no unit 'Gbqs' (did you mean 1Gbps? known units: "),
            std::string::npos);
  EXPECT_NE(bandwidth("fast").find("does not begin with a number (write it as 1Gbps)"),
            std::string::npos);
  EXPECT_NE(bandwidth("nanGbps").find("does not begin with a number"), std::string::npos);
  EXPECT_NE(error_of([] { parse_duration("--compute", "120"); }).find("120ms?"), std::string::npos);
  EXPECT_NE(error_of([] { parse_duration("--compute", "0ms"); }).find("is zero"),
            std::string::npos);
}

TEST(PlanModels, AreThePapers) {
  EXPECT_EQ(models::find_model("ResNet-50")->parameters, 25'557'032u);
  EXPECT_EQ(models::find_model("PTB")->parameters, 51'034'000u);
  EXPECT_NE(error_of([] {
              models::model_named("resnet500", "plan", "--model");
            }).find("did you mean 'resnet50'?"),
            std::string::npos);
  // The paper's sizes, MiB, follow from the counts: runs of 16 bits and fp32 values, the rest
  // whole.
  for (const auto& [name, mebibytes] :
       {std::pair{"alexnet", 0.389}, {"resnet50", 0.352}, {"lstm", 0.422}}) {
    const models::Model& w = *models::find_model(name);
    const double bytes =
        0.006 * static_cast<double>(w.sparse()) + 4.0 * static_cast<double>(w.one_dimensional);
    EXPECT_NEAR(bytes / (1 << 20), mebibytes, 0.0006) << name;
  }
}

TEST(PlanCost, BytesAreThoseOfTheExchange) {
  const Scenario setup = setup_for("alexnet");
  const double message = message_bytes(setup);
  EXPECT_NEAR(4.0 * 60'965'224 / message, 960.0, 30.0) << "Rice and fp16, biases whole";
  EXPECT_DOUBLE_EQ(predict(setup, Method::dense, 8).received_bytes, 8.0 * 60'965'224 * 7 / 8);
  EXPECT_DOUBLE_EQ(predict(setup, Method::allgather, 8).received_bytes, 7 * (message + 8.0));
  EXPECT_DOUBLE_EQ(predict(setup, Method::owner, 8).received_bytes,
                   exchange::received_bytes(Algorithm::owner, message, 0.0, 8));
  EXPECT_LE(predict(setup, Method::automatic, 8).step, predict(setup, Method::allgather, 8).step);
}

TEST(PlanCost, AutoGoesDenseWhereTheExchangeDoes) {
  Scenario setup = setup_for("resnet50");
  setup.ratio = 0.25;
  const Prediction dense = predict(setup, Method::dense, 64);
  EXPECT_DOUBLE_EQ(
      predict(setup, Method::automatic, 64).received_bytes,
      exchange::received_bytes(Algorithm::dense, 0.0, dense.received_bytes * 64 / 63 / 8, 64));
  EXPECT_GT(predict(setup, Method::allgather, 64).received_bytes, 4 * dense.received_bytes);
}

TEST(PlanCost, ClippedModelsTravelInOneBucket) {
  Scenario setup = setup_for("lstm");
  setup.latency = 1.0;
  const double one = predict(setup, Method::automatic, 8).network;
  setup.model.clipped = false;
  // 51 M parameters are 8 buckets of 25 MiB, of one round each where a round is that dear.
  EXPECT_NEAR(predict(setup, Method::automatic, 8).network - one, 7 * 1.0, 0.01);
}

TEST(PlanCost, OneWorkerExchangesNothing) {
  for (const Method method : kMethods) {
    const Prediction p = predict(setup_for("vgg16"), method, 1);
    EXPECT_DOUBLE_EQ(p.step, 0.25);
    EXPECT_DOUBLE_EQ(p.speedup, 1.0);
  }
}

TEST(PlanCost, IsMonotonous) {
  for (const Method method : kMethods) {
    EXPECT_GT(predict(setup_for("resnet50", 0.25, 1e8), method, 8).step,
              predict(setup_for("resnet50", 0.25, 1e9), method, 8).step)
        << title_of(method);
    if (method == Method::owner) continue;  // ranges that owners select from again shrink at first
    double before = 0.0;
    for (const int nodes : {2, 4, 8, 64, 4096}) {
      const double step = predict(setup_for("resnet50"), method, nodes).step;
      EXPECT_GE(step, before) << title_of(method) << " on " << nodes;
      before = step;
    }
  }
}

TEST(PlanCost, SpeedUpIsOfOneWorkerAndEfficiencyOfAll) {
  const Prediction p = predict(setup_for("resnet50"), Method::automatic, 8);
  EXPECT_DOUBLE_EQ(p.step, p.compute + p.coding + p.network);
  EXPECT_DOUBLE_EQ(p.speedup, 8 * 0.25 / p.step);
  EXPECT_DOUBLE_EQ(p.efficiency, p.speedup / 8);
}

TEST(PlanCost, WorkersThatShareCoresTakeTurns) {
  Scenario setup = setup_for("resnet20", 0.1);
  setup.shared_cores = 2;
  EXPECT_DOUBLE_EQ(predict(setup, Method::dense, 2).compute, 0.1);
  EXPECT_DOUBLE_EQ(predict(setup, Method::dense, 8).compute, 0.4);
  EXPECT_LE(predict(setup, Method::dense, 8).speedup, 2.0);
}

TEST(PlanCost, HierarchicalSparesTheLink) {
  Scenario setup = setup_for("resnet50");
  EXPECT_EQ(methods_for(setup).size(), 5u) << "no hierarchy of one worker a node";
  setup.workers_per_node = 4;
  EXPECT_EQ(methods_for(setup).size(), 6u);
  const Prediction flat = predict(setup, Method::allgather, 8);
  const Prediction deep = predict(setup, Method::shares, 8);
  EXPECT_EQ(deep.workers, 32);
  EXPECT_LT(deep.link_bytes, flat.link_bytes / 3);
}

std::vector<Prediction> all_of(const Scenario& setup, int nodes) {
  std::vector<Prediction> predictions;
  for (const Method method : methods_for(setup))
    predictions.push_back(predict(setup, method, nodes));
  return predictions;
}

TEST(PlanAdvice, SaysWhenCompressionPays) {
  const Scenario slow = setup_for("alexnet", 0.36, 1e9);
  const Advice pays = advise(slow, all_of(slow, 8));
  EXPECT_TRUE(pays.pays);
  EXPECT_EQ(pays.method, Method::automatic) << "exact where it is as fast";
  EXPECT_GT(pays.gain, 3.0);
  EXPECT_GT(pays.below, 1e9);

  const Scenario fast = setup_for("resnet20", 10.0, 1e11);
  const Advice dear = advise(fast, all_of(fast, 8));
  EXPECT_FALSE(dear.pays);
  EXPECT_EQ(dear.method, Method::dense);
  EXPECT_NE(dear.text.find("does not pay"), std::string::npos);

  const Scenario many = setup_for("alexnet", 0.36, 1e9);
  EXPECT_EQ(advise(many, all_of(many, 1024)).method, Method::owner) << "traffic that does not grow";
  EXPECT_NE(advise(slow, all_of(slow, 1)).text.find("one worker"), std::string::npos);
}

TEST(PlanAdvice, BreakEvenIsWhereItSays) {
  Scenario setup = setup_for("resnet50", 2.0);
  const Advice advice = advise(setup, all_of(setup, 16));
  setup.bandwidth = advice.below * 0.9;
  EXPECT_TRUE(advise(setup, all_of(setup, 16)).pays);
  setup.bandwidth = advice.below * 1.1;
  EXPECT_FALSE(advise(setup, all_of(setup, 16)).pays);
}

TEST(PlanChart, HasALineForEachMethodAndEscapes) {
  const Scenario setup = setup_for("alexnet");
  std::vector<Panel> panels = {{"at <1 Gbps>", {}}};
  for (const int nodes : {1, 2, 64}) {
    for (const Prediction& p : all_of(setup, nodes)) panels[0].predictions.push_back(p);
  }
  const std::string svg = chart_svg("A & B", "a note", panels);
  EXPECT_EQ(svg.find("<svg xmlns='http://www.w3.org/2000/svg'"), 0u);
  EXPECT_NE(svg.find("prefers-color-scheme: dark"), std::string::npos);
  EXPECT_NE(svg.find("A &amp; B"), std::string::npos);
  EXPECT_NE(svg.find("at &lt;1 Gbps>"), std::string::npos);
  EXPECT_EQ(svg.find("http://", 40), std::string::npos) << "needs nothing else";
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  for (const Method method : methods_for(setup))
    EXPECT_NE(svg.find(std::string(title_of(method)) + " "), std::string::npos);
  const std::string html = chart_html("A & B", "a note", panels);
  EXPECT_NE(html.find("name='viewport'"), std::string::npos);
  EXPECT_NE(html.find("<table>"), std::string::npos);
}

TEST(PlanCosts, AreReadFromAFile) {
  const test::Scratch folder;
  const auto with = [&](const char* text) {
    Scenario setup;
    read_costs(folder.write("costs.json", text), setup);
    return setup;
  };
  const Scenario setup = with(R"({"byte": 2e-9, "payload": 0.9})");
  EXPECT_DOUBLE_EQ(setup.costs.byte, 2e-9);
  EXPECT_DOUBLE_EQ(setup.payload, 0.9);
  EXPECT_DOUBLE_EQ(setup.costs.select, Costs{}.select);
  EXPECT_NE(error_of([&] { with("[1]"); }).find("is not a JSON object"), std::string::npos);
  EXPECT_NE(error_of([&] { with(R"({"bite": 1})"); }).find("did you mean 'byte'?"),
            std::string::npos);
  EXPECT_NE(error_of([&] { with(R"({"byte": -1})"); }).find("'byte' is -1"), std::string::npos);
}

TEST(PlanLocal, TakesAsFewStepsAsTheShareAllows) {
  Scenario setup = setup_for("gpt2", 1.0, 20e6);
  setup.latency = 0.025;
  setup.values = ValueType::table2;
  for (const double share : {0.01, 0.05, 0.3}) {
    const auto plans = plan_local(setup, 4, share, {});
    ASSERT_EQ(plans.size(), 5u);
    for (const LocalPlan& plan : plans) {
      const double within = plan.exchange / (static_cast<double>(plan.local_steps) + plan.exchange);
      EXPECT_LE(within, share * (1 + 1e-9)) << plan.title << plan.ratio;
      EXPECT_NEAR(plan.share, within, 1e-12);
      EXPECT_NEAR(plan.step, 1.0 + plan.exchange / static_cast<double>(plan.local_steps), 1e-12);
      const double fewer = static_cast<double>(plan.local_steps - 1);
      EXPECT_GT(plan.exchange / (fewer + plan.exchange), share) << plan.title << plan.ratio;
    }
    EXPECT_EQ(plans[0].title, "diloco");
    EXPECT_EQ(plans[0].bits, 32.0);
    // Less is sent from row to row.
    for (std::size_t i = 1; i < plans.size(); ++i) {
      EXPECT_LT(plans[i].bits, plans[i - 1].bits);
      EXPECT_LE(plans[i].local_steps, plans[i - 1].local_steps);
    }
  }
  EXPECT_EQ(plan_local(setup, 4, 0.05, 0.01).size(), 2u);
  // A network that takes no time worth speaking of needs no local steps.
  setup.bandwidth = 1e13;
  setup.latency = 0.0;
  setup.compute = 1e4;
  EXPECT_EQ(plan_local(setup, 2, 0.5, {})[0].local_steps, 1u);
}

TEST(PlanLocal, OneInSixtyFourWithTwoBitsIsBelowTheTarget) {
  Scenario setup = setup_for("gpt2", 1.0, 20e6);
  setup.values = ValueType::table2;
  const auto plans = plan_local(setup, 4, 0.05, 1.0 / 64);
  EXPECT_LT(plans[1].bits, 0.17);
  EXPECT_GT(plans[1].bits, 0.13);
}

}  // namespace
}  // namespace dgc::plan
