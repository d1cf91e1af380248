// Plans for a hub, for people and for programs.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "plan/hub.h"

namespace dgc::plan {

/// What is shown of one bandwidth.
struct HubTable {
  std::string heading;
  std::vector<std::vector<std::string>> rows;  ///< the first has the names of the columns
  std::string advice;                          ///< a line for each number of members, or nothing
};
/// One for each bandwidth.
std::vector<HubTable> hub_tables(const Scenario& setup, double hub_bandwidth,
                                 const std::vector<HubPlan>& plans);
std::vector<HubTable> hub_tables(const Scenario& setup, double hub_bandwidth,
                                 const std::vector<HubLocalPlan>& plans);

nlohmann::json to_json(const HubPlan& plan);
nlohmann::json to_json(const HubLocalPlan& plan);

}  // namespace dgc::plan
