// The exchange of a round costs what that of a gradient costs. With H local steps of c seconds and
// an exchange of r seconds its share of the time is r / (H·c + r), so that
//
//   H = r·(1 - share) / (share·c), rounded up.
#include "plan/local.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace dgc::plan {
namespace {

/// From 6 to 0.1 %: what docs/local.md has measured.
constexpr double kRatios[] = {1.0 / 16, 1.0 / 64, 1.0 / 256, 1.0 / 1024};

/// 2 bits, and a table of two 16-bit magnitudes for each 256 values.
constexpr double kBytesOfTable2 = 0.25 + 4.0 / 256.0;

LocalPlan local_plan(const Scenario& setup, Method method, int nodes, double share) {
  const Prediction p = predict(setup, method, nodes);
  LocalPlan plan = steps_between(p.coding + p.network, p.compute, share);
  plan.bits = 8.0 * p.message_bytes / static_cast<double>(setup.model.parameters);
  plan.speedup = p.workers * setup.compute / plan.step;
  plan.received_bytes = p.received_bytes / static_cast<double>(plan.local_steps);
  return plan;
}

}  // namespace

nlohmann::json to_json(const LocalPlan& plan) {
  return {{"ratio", plan.ratio},
          {"bits_per_parameter", plan.bits},
          {"exchange_seconds", plan.exchange},
          {"local_steps", plan.local_steps},
          {"step_seconds", plan.step},
          {"exchange_share", plan.share},
          {"speedup", plan.speedup}};
}

Scenario for_rounds(Scenario setup) {
  setup.whole_value_bytes = kBytesOfTable2;
  return setup;
}

LocalPlan steps_between(double exchange, double compute, double share) {
  LocalPlan plan{.exchange = exchange};
  const double steps = exchange * (1.0 - share) / (share * compute);
  // A step too many because of rounding does no harm, one too few breaks the promise.
  plan.local_steps =
      std::max<std::uint64_t>(1, static_cast<std::uint64_t>(std::ceil(steps - 1e-9)));
  const auto h = static_cast<double>(plan.local_steps);
  plan.step = compute + exchange / h;
  plan.share = exchange / h / plan.step;
  return plan;
}

std::vector<double> ratios_for(std::optional<double> ratio) {
  if (ratio) return {*ratio};
  return {std::begin(kRatios), std::end(kRatios)};
}

std::vector<LocalPlan> plan_local(const Scenario& setup, int nodes, double share,
                                  std::optional<double> ratio) {
  std::vector<LocalPlan> plans = {local_plan(setup, Method::dense, nodes, share)};
  plans.back().title = "diloco";
  Scenario rounds = for_rounds(setup);
  for (const double of : ratios_for(ratio)) {
    rounds.ratio = of;
    plans.push_back(local_plan(rounds, Method::allgather, nodes, share));
    plans.back().title = "dgc-local";
    plans.back().ratio = of;
  }
  return plans;
}

}  // namespace dgc::plan
