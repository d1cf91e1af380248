// What a round over a hub costs, with everybody's messages forwarded or one that the hub selects,
// beside the all-gather of a group without a hub. docs/plan.md has the equations.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hub/terms.h"
#include "plan/cost.h"
#include "plan/local.h"

namespace dgc::plan {

/// What takes most of a round.
enum class Limit { computing, delay, member_link, hub_link, hub_work };
/// "computing", "the delay", "a member's link" …
std::string_view text_of(Limit limit) noexcept;

/// Seconds of a round over a hub, and where they go: one after the other.
struct HubRound {
  hub::Down down = hub::Down::forward;
  int members = 1;
  double compute = 0.0;
  double coding = 0.0;  ///< a member's: selecting, encoding, decoding, adding
  double delay = 0.0;   ///< of one round trip
  double up = 0.0;      ///< moving messages to the hub
  double back = 0.0;    ///< moving what goes down
  double work = 0.0;    ///< the hub's own
  double round = 0.0;
  double speedup = 1.0;  ///< examples a second, against one worker alone
  double message_bytes = 0.0;
  double up_bytes = 0.0, down_bytes = 0.0;  ///< of one member
  Limit limit = Limit::computing;
};

/// `setup.bandwidth` and `setup.latency` are those of a member's link; `hub_bandwidth` is in bit/s,
/// each way. A member is one worker.
HubRound predict_hub(const Scenario& setup, double hub_bandwidth, hub::Down down, int members);

/// Both ways for so many members.
struct HubPlan {
  double bandwidth = 0.0;  ///< of a member's link
  HubRound forward, select;
  Prediction mesh;  ///< all-gather, without a hub
  hub::Down automatic = hub::Down::forward;
  hub::Down faster = hub::Down::forward;  ///< forward where both are alike within 3 %
  std::string advice;                     ///< without a full stop
};
HubPlan plan_hub(const Scenario& setup, double hub_bandwidth, int members);

/// Local steps between rounds over a hub.
struct HubLocalPlan {
  double bandwidth = 0.0;
  HubRound round;
  LocalPlan steps;  ///< title is that of the down-link; received_bytes is what goes down
  double up_bytes_per_step = 0.0;
};
/// Of both down-links, at `ratio` or at several where it is not given. `share` is in (0, 1).
std::vector<HubLocalPlan> plan_hub_local(const Scenario& setup, double hub_bandwidth, int members,
                                         double share, std::optional<double> ratio);

}  // namespace dgc::plan
