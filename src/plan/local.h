// How many local steps a link needs: each worker trains by itself, and the exchange between two
// rounds may take a given share of the time.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "plan/cost.h"

namespace dgc::plan {

/// One way to exchange what changed in a round.
struct LocalPlan {
  std::string title;              ///< "diloco", "dgc-local"
  double ratio = 1.0;             ///< of the entries that are sent
  double bits = 32.0;             ///< a parameter and round
  double exchange = 0.0;          ///< seconds of an exchange: coding and network
  std::uint64_t local_steps = 1;  ///< the fewest that keep it within the share
  double step = 0.0;              ///< seconds, with its part of the exchange
  double share = 0.0;             ///< of the time, that the exchange takes
  double speedup = 1.0;           ///< examples a second, against one worker alone
  double received_bytes = 0.0;    ///< by a worker, a step
};

/// The fewest steps of `compute` seconds each between two exchanges: local_steps, step and share.
LocalPlan steps_between(double exchange, double compute, double share);

/// Those to plan for: the one that is given, or several.
std::vector<double> ratios_for(std::optional<double> ratio);

/// Dense rounds (DiLoCo), and compressed ones at `ratio`, or at several where it is not given.
/// `setup.values` are those of the entries. `share` is in (0, 1).
std::vector<LocalPlan> plan_local(const Scenario& setup, int nodes, double share,
                                  std::optional<double> ratio);

/// But for the title, the network, and what is received.
nlohmann::json to_json(const LocalPlan& plan);

/// The scenario of compressed rounds: what is sent whole travels in 2 bits, too.
Scenario for_rounds(Scenario setup);

}  // namespace dgc::plan
