#include "train/ratio_control.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "dgc/error.h"
#include "train/across_ranks.h"
#include "train/run_folder.h"

namespace dgc::train {
namespace {

using nlohmann::ordered_json;

constexpr const char* kRatiosFile = "ratios.json";
constexpr std::uint64_t kDecisions = 50;
constexpr std::uint64_t kLeastSteps = 10;  // between two of them
/// Smaller changes are left: they are noise of the clock.
constexpr double kWorthChanging = 0.1;

}  // namespace

RatioControl::RatioControl(Sgd& sgd, std::filesystem::path folder, double least,
                           std::uint64_t steps)
    : sgd_(sgd),
      file_(std::move(folder) / kRatiosFile),
      least_(least),
      now_(least),
      every_(std::max(kLeastSteps, steps / kDecisions)),
      last_(steps) {}

void RatioControl::resume() {
  std::string mine;
  if (sgd_.group().rank() == 0) {
    if (const auto file = read_json(file_)) mine = file->dump();
  }
  const std::string text = gathered(sgd_.group(), mine).front();
  if (text.empty()) return;
  const auto done = static_cast<std::int64_t>(sgd_.steps());
  try {
    const ordered_json json = ordered_json::parse(text);
    const bool as_before = json.at("workers").get<int>() == sgd_.group().size();
    for (const ordered_json& line : json.at("decisions")) {
      const RatioDecision one{.from_step = line.at("from_step").get<std::int64_t>(),
                              .ratio = line.at("ratio").get<double>(),
                              .compute_seconds = line.at("compute_seconds").get<double>()};
      // With other workers the rest of the run has another time to decide by.
      if (one.from_step > done + 1 && !as_before) break;
      decisions_.push_back(one);
      if (one.from_step > done + 1) continue;
      sgd_.raise_ratio(one.from_step, one.ratio);
      now_ = one.ratio;
    }
  } catch (const ordered_json::exception& error) {
    throw Error(ErrorCode::bad_state, "resume", file_.string(), error.what(),
                "remove the file: what is free is then measured anew");
  }
}

RatioDecision RatioControl::decide(std::int64_t from_step) {
  const double mean = compute_ / static_cast<double>(std::max<std::uint64_t>(1, steps_));
  const double compute = summed(sgd_.group(), {mean}).front() / sgd_.group().size();
  return {.from_step = from_step,
          .ratio = sgd_.free_ratio(compute, least_),
          .compute_seconds = compute};
}

std::string RatioControl::after_step(double compute_seconds) {
  compute_ += compute_seconds;
  ++steps_;
  if (sgd_.steps() % every_ != 0 || sgd_.steps() + 1 >= last_) return {};
  const auto from_step = static_cast<std::int64_t>(sgd_.steps()) + 1;
  const auto kept = std::find_if(decisions_.begin(), decisions_.end(), [&](const auto& decision) {
    return decision.from_step == from_step;
  });
  RatioDecision decision;
  if (kept != decisions_.end()) {
    decision = *kept;
  } else {
    decision = decide(from_step);
    if (std::fabs(decision.ratio - now_) <= kWorthChanging * now_) decision.ratio = now_;
    // What stays is kept as well: a run that is resumed would decide about it anew.
    decisions_.push_back(decision);
    keep();
  }
  compute_ = 0.0;
  steps_ = 0;
  if (decision.ratio == now_) return {};
  now_ = decision.ratio;
  sgd_.raise_ratio(from_step, now_);
  return fmt::format("from step {} on {:.3g} % is sent: free beside {:.3g} ms of computing",
                     from_step, 100.0 * now_, 1e3 * decision.compute_seconds);
}

void RatioControl::keep() const {
  if (sgd_.group().rank() != 0) return;
  ordered_json lines = ordered_json::array();
  for (const RatioDecision& one : decisions_) {
    lines.push_back({{"from_step", one.from_step},
                     {"ratio", one.ratio},
                     {"compute_seconds", one.compute_seconds}});
  }
  write_json(file_, {{"workers", sgd_.group().size()}, {"decisions", lines}});
}

}  // namespace dgc::train
