// The terms of a run: what hub and members have to compute alike, agreed when a member joins.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "dgc/compressor.h"

namespace dgc::hub {

/// What goes down to the members.
enum class Down {
  forward,  ///< the messages of all members: exact DGC; as many messages as members
  select,   ///< one message: the hub selects again from the sum, and keeps the rest in its residual
};
std::string_view name_of(Down down) noexcept;
/// Throws Error(invalid_argument).
Down parse_down(std::string_view name);
/// What `--down auto` takes for so many members: with more than 8, one message for all is smaller
/// than everybody's message to everybody.
constexpr Down down_for(std::int64_t members) noexcept {
  return members > 8 ? Down::select : Down::forward;
}

struct Terms {
  Down down = Down::forward;
  /// local: at the members, as in the paper. global: at the hub, which needs Down::select. off: at
  /// the replicas, on the sum.
  MomentumCorrection momentum_correction = MomentumCorrection::local;
  float momentum = 0.9f;
  bool nesterov = false;
  bool masking = true;
  float weight_decay = 0.0f;
  double clip_norm = 0.0;       ///< of the mean gradient of all members
  float residual_decay = 1.0f;  ///< for local steps
  ValueType values = ValueType::fp16;
  ValueType dense_values = ValueType::fp32;
  int save_every = 20;   ///< members save their residual after so many rounds
  int check_every = 20;  ///< commits of these rounds carry a hash of the parameters

  /// How a member selects, and how the hub does. The ratio comes with each round.
  CompressOptions member_options() const;
  CompressOptions hub_options() const;
  /// Throws Error(invalid_argument) for terms that do not go together.
  void check() const;
};

nlohmann::json to_json(const Terms& terms);
/// Throws Error(bad_state), Error(invalid_argument).
Terms terms_from(const nlohmann::json& json);

std::uint64_t elements_of(const std::vector<TensorSpec>& model) noexcept;
nlohmann::json to_json(const std::vector<TensorSpec>& model);
/// Throws Error(bad_state), also for more than `most` elements in all.
std::vector<TensorSpec> model_from(const nlohmann::json& json, std::uint64_t most);
/// Where a member's model first differs from the run's, for people; empty where it does not.
std::string difference(const std::vector<TensorSpec>& run, const std::vector<TensorSpec>& member);

}  // namespace dgc::hub
