// A run over a hub, made of the settings that `dgc train` has, too: the terms that members keep to,
// and how learning rate and ratio change.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "hub/hub.h"
#include "train/settings.h"

namespace dgc::train {

/// What `dgc serve` is told beside the settings of training.
struct HubChoices {
  std::string down = "auto";  ///< forward, select, or auto: by the number of workers
  bool own_model = false;     ///< members bring model and data: there is no recipe
  bool private_data = false;
  int quorum = 0;
  double deadline = 0.0;
  std::uint64_t oldest = 3;
  double norm_bound = 0.0;
  double lost_after = 300.0;
  int save_every = 20;
  std::uint64_t snapshot_every = 100;
};
nlohmann::ordered_json to_json(const HubChoices& choices);
/// Throws Error(bad_state) naming `file`.
HubChoices hub_choices_from(const nlohmann::json& json, const std::string& file);

struct HubRun {
  hub::HubOptions options;
  hub::HubPlan plan;
  std::string mode;    ///< dgc or dgc-local
  std::string reason;  ///< of what was left open
  /// To be told of each evaluation's loss, also of those before a restart: --lr-schedule plateau.
  std::function<void(double)> evaluated;
};
/// `given` is what the user said himself. Throws Error(invalid_argument) for settings that mean
/// nothing to a hub, naming them.
HubRun hub_run(const Settings& settings, const nlohmann::json& given, const HubChoices& choices);

/// What the settings of a hub are to a member: of one worker, with a member's part of the batch.
struct MemberRun {
  Settings settings;
  std::string mode;
  bool own_model = false;
};
/// From what the hub says. Throws Error(bad_state), and what apply() throws.
MemberRun member_run(const std::string& settings_of_hub);

}  // namespace dgc::train
