// What to do, given the predictions.
#pragma once

#include <string>
#include <vector>

#include "plan/cost.h"

namespace dgc::plan {

/// For one number of nodes.
struct Advice {
  Method method = Method::dense;
  bool pays = false;  ///< compressing saves more than it costs in trouble
  double gain = 1.0;  ///< step of the fastest dense method over that of the fastest compressing one
  double below = 0.0;  ///< compression pays below this bandwidth, in bit/s; 0: at none
  std::string text;    ///< one sentence
};

/// Compression has to save this share of the dense step to be worth its trouble.
inline constexpr double kWorthwhile = 0.05;

/// `predictions` are those of one number of nodes, of dense and compressing methods. Prefers, among
/// those that are equally fast within 3 %, the one that comes first: dense before compressing,
/// exact before selected twice.
Advice advise(const Scenario& setup, const std::vector<Prediction>& predictions);

/// What the predictions take for granted beside the model and the network: a few lines.
std::string assumptions_text(const Scenario& setup);

}  // namespace dgc::plan
