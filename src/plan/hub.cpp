// All messages go up at once, and what goes down goes to all at once: each member has its share of
// the hub's link, or its own link, whichever is slower. Nothing overlaps.
#include "plan/hub.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "dgc/schedule.h"

namespace dgc::plan {
namespace {

/// Bytes around a message that goes up, around what comes down, and of a member's line in a commit
/// with everybody's messages (docs/hub.md, "Figures").
constexpr double kAroundUp = 230.0;
constexpr double kAroundDown = 500.0;
constexpr double kLine = 75.0;

/// Seconds of the hub for a message of no size, at 32 and at 1,000 members (docs/hub.md,
/// "Figures").
struct Handling {
  double few, many;
};
constexpr double kFew = 32.0, kMany = 1000.0;
constexpr Handling kForward = {52e-6, 276e-6};
constexpr Handling kSelect = {52e-6, 120e-6};

/// Linear between what was measured, and beyond.
double handling(hub::Down down, double members) {
  const Handling& of = down == hub::Down::select ? kSelect : kForward;
  const double slope = (of.many - of.few) / (kMany - kFew);
  return members * std::max(0.0, of.few + slope * (members - kFew));
}

Limit limit_of(const HubRound& round, bool hub_link) {
  const std::pair<double, Limit> parts[] = {
      {round.compute + round.coding, Limit::computing},
      {round.delay, Limit::delay},
      {round.up + round.back, hub_link ? Limit::hub_link : Limit::member_link},
      {round.work, Limit::hub_work}};
  return std::max_element(std::begin(parts), std::end(parts),
                          [](const auto& a, const auto& b) { return a.first < b.first; })
      ->second;
}

/// Of those that are alike the first is taken: exact before selected twice.
constexpr double kAlike = 1.03;

std::string advice_of(const HubPlan& plan) {
  const HubRound& taken = plan.automatic == hub::Down::select ? plan.select : plan.forward;
  const HubRound& other = plan.automatic == hub::Down::select ? plan.forward : plan.select;
  const std::string begin = fmt::format("auto takes {}", hub::name_of(taken.down));
  const std::string name(hub::name_of(other.down));
  const double gain = other.round / taken.round;
  if (gain > kAlike) return fmt::format("{}, {:.2g}x as fast as {}", begin, gain, name);
  if (gain * kAlike >= 1.0) return fmt::format("{}; {} takes as long", begin, name);
  return fmt::format("{}; {} is {:.2g}x as fast: --down {}", begin, name, 1.0 / gain, name);
}

}  // namespace

std::string_view text_of(Limit limit) noexcept {
  switch (limit) {
    case Limit::computing:
      return "computing";
    case Limit::delay:
      return "the delay";
    case Limit::member_link:
      return "a member's link";
    case Limit::hub_link:
      return "the hub's link";
    case Limit::hub_work:
      break;
  }
  return "the hub's work";
}

HubRound predict_hub(const Scenario& setup, double hub_bandwidth, hub::Down down, int members) {
  const Costs& costs = setup.costs;
  const double n = members;
  const auto sparse = static_cast<double>(setup.model.sparse());
  const auto whole = static_cast<double>(setup.model.one_dimensional);
  const auto all = static_cast<double>(setup.model.parameters);
  const auto k = static_cast<double>(
      setup.model.sparse() == 0 ? 0 : entries_at(setup.ratio, setup.model.sparse()));
  const bool selects = down == hub::Down::select;
  const double received = selects ? 1.0 : n;  // messages
  // Selecting and encoding one message, and adding one to the parameters.
  const double make = sparse * costs.select + k * costs.encode + whole * costs.dense;
  const double add = k * costs.entry + whole * costs.dense;

  HubRound round{.down = down, .members = members};
  round.message_bytes = message_bytes(setup);
  round.up_bytes = round.message_bytes + kAroundUp;
  round.down_bytes = received * (round.message_bytes + (selects ? 0.0 : kLine)) + kAroundDown;
  round.compute = setup.compute;
  round.coding = make + received * add;
  round.delay = 2.0 * setup.latency;
  const double each = hub_bandwidth / n;
  const double bytes_per_second = std::min(setup.bandwidth, each) * setup.payload / 8.0;
  round.up = round.up_bytes / bytes_per_second;
  round.back = round.down_bytes / bytes_per_second;
  // It adds up the messages in its parameters, or in a sum that it selects from.
  round.work = handling(down, n) + n * add + (selects ? all * costs.dense + make + add : 0.0);
  round.round = round.compute + round.coding + round.delay + round.up + round.back + round.work;
  round.speedup = n * setup.compute / round.round;
  round.limit = limit_of(round, each < setup.bandwidth);
  return round;
}

HubPlan plan_hub(const Scenario& setup, double hub_bandwidth, int members) {
  HubPlan plan{.bandwidth = setup.bandwidth,
               .forward = predict_hub(setup, hub_bandwidth, hub::Down::forward, members),
               .select = predict_hub(setup, hub_bandwidth, hub::Down::select, members),
               .mesh = predict(setup, Method::allgather, members),
               .automatic = hub::down_for(members)};
  if (plan.forward.round > kAlike * plan.select.round) plan.faster = hub::Down::select;
  plan.advice = advice_of(plan);
  return plan;
}

std::vector<HubLocalPlan> plan_hub_local(const Scenario& setup, double hub_bandwidth, int members,
                                         double share, std::optional<double> ratio) {
  std::vector<HubLocalPlan> plans;
  Scenario rounds = for_rounds(setup);
  for (const hub::Down down : {hub::Down::forward, hub::Down::select}) {
    for (const double of : ratios_for(ratio)) {
      rounds.ratio = of;
      HubLocalPlan plan{.bandwidth = setup.bandwidth,
                        .round = predict_hub(rounds, hub_bandwidth, down, members),
                        .steps = {}};
      const HubRound& round = plan.round;
      plan.steps = steps_between(round.round - round.compute, round.compute, share);
      const auto h = static_cast<double>(plan.steps.local_steps);
      plan.steps.title = hub::name_of(down);
      plan.steps.ratio = of;
      plan.steps.bits = 8.0 * round.message_bytes / static_cast<double>(setup.model.parameters);
      plan.steps.speedup = members * setup.compute / plan.steps.step;
      plan.steps.received_bytes = round.down_bytes / h;
      plan.up_bytes_per_step = round.up_bytes / h;
      plans.push_back(std::move(plan));
    }
  }
  return plans;
}

}  // namespace dgc::plan
