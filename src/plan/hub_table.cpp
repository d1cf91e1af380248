#include "plan/hub_table.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/quantity.h"
#include "base/units.h"

namespace dgc::plan {
namespace {

std::string heading(const Scenario& setup, double hub_bandwidth, double bandwidth) {
  return fmt::format("{} each member, {} a message; the hub {}, which limits with more than {:.0f}",
                     bandwidth_text(bandwidth), duration_text(setup.latency),
                     bandwidth_text(hub_bandwidth), std::floor(hub_bandwidth / bandwidth));
}

std::vector<std::string> row_of(const HubRound& round, hub::Down faster) {
  return {std::to_string(round.members),
          fmt::format("hub {}", hub::name_of(round.down)),
          duration_text(round.round),
          fmt::format("{:.1f}", round.speedup),
          std::string(text_of(round.limit)),
          bytes_text(round.up_bytes),
          bytes_text(round.down_bytes),
          fmt::format("{}{}", round.down == hub::down_for(round.members) ? "<- auto" : "",
                      round.down == faster ? " <- faster" : "")};
}

nlohmann::json to_json(const HubRound& round) {
  return {{"down", hub::name_of(round.down)},     {"round_seconds", round.round},
          {"compute_seconds", round.compute},     {"coding_seconds", round.coding},
          {"delay_seconds", round.delay},         {"up_seconds", round.up},
          {"down_seconds", round.back},           {"hub_seconds", round.work},
          {"limited_by", text_of(round.limit)},   {"speedup", round.speedup},
          {"message_bytes", round.message_bytes}, {"up_bytes", round.up_bytes},
          {"down_bytes", round.down_bytes}};
}

}  // namespace

std::vector<HubTable> hub_tables(const Scenario& setup, double hub_bandwidth,
                                 const std::vector<HubPlan>& plans) {
  std::vector<HubTable> tables;
  for (std::size_t i = 0; i < plans.size();) {
    const double bandwidth = plans[i].bandwidth;
    HubTable table{
        .heading = heading(setup, hub_bandwidth, bandwidth),
        .rows = {{"members", "way", "round", "speed-up", "most of it", "up", "down", "  "}},
        .advice = {}};
    for (; i < plans.size() && plans[i].bandwidth == bandwidth; ++i) {
      const HubPlan& plan = plans[i];
      table.rows.push_back(row_of(plan.forward, plan.faster));
      table.rows.push_back(row_of(plan.select, plan.faster));
      const Prediction& mesh = plan.mesh;
      const bool computes = mesh.compute + mesh.coding > mesh.network;
      // A worker of the group sends what it receives.
      table.rows.push_back({std::to_string(mesh.nodes), "no hub: all-gather",
                            duration_text(mesh.step), fmt::format("{:.1f}", mesh.speedup),
                            computes ? "computing" : "the network", bytes_text(mesh.received_bytes),
                            bytes_text(mesh.received_bytes), ""});
      table.advice += fmt::format("{} members: {}.\n", mesh.nodes, plan.advice);
    }
    tables.push_back(std::move(table));
  }
  return tables;
}

nlohmann::json to_json(const HubPlan& plan) {
  const Prediction& mesh = plan.mesh;
  return {{"bandwidth", plan.bandwidth},
          {"members", mesh.nodes},
          {"rounds", {to_json(plan.forward), to_json(plan.select)}},
          {"mesh",
           {{"round_seconds", mesh.step},
            {"network_seconds", mesh.network},
            {"speedup", mesh.speedup},
            {"received_bytes", mesh.received_bytes}}},
          {"auto", hub::name_of(plan.automatic)},
          {"faster", hub::name_of(plan.faster)},
          {"advice", plan.advice}};
}

std::vector<HubTable> hub_tables(const Scenario& setup, double hub_bandwidth,
                                 const std::vector<HubLocalPlan>& plans) {
  std::vector<HubTable> tables;
  for (std::size_t i = 0; i < plans.size();) {
    const double bandwidth = plans[i].bandwidth;
    HubTable table{.heading = heading(setup, hub_bandwidth, bandwidth),
                   .rows = {{"members", "down", "ratio", "bits a parameter", "exchange",
                             "local steps", "step", "speed-up", "up a step", "down a step"}},
                   .advice = {}};
    for (; i < plans.size() && plans[i].bandwidth == bandwidth; ++i) {
      const LocalPlan& p = plans[i].steps;
      table.rows.push_back({std::to_string(plans[i].round.members), p.title,
                            fmt::format("{:.3g} %", 100.0 * p.ratio), fmt::format("{:.3g}", p.bits),
                            duration_text(p.exchange), std::to_string(p.local_steps),
                            duration_text(p.step), fmt::format("{:.1f}", p.speedup),
                            bytes_text(plans[i].up_bytes_per_step), bytes_text(p.received_bytes)});
    }
    tables.push_back(std::move(table));
  }
  return tables;
}

nlohmann::json to_json(const HubLocalPlan& plan) {
  nlohmann::json out = to_json(plan.steps);
  out.update({{"bandwidth", plan.bandwidth},
              {"members", plan.round.members},
              {"up_bytes_per_step", plan.up_bytes_per_step},
              {"down_bytes_per_step", plan.steps.received_bytes},
              {"round", to_json(plan.round)}});
  return out;
}

}  // namespace dgc::plan
