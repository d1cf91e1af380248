#include "train/budget.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/quantity.h"
#include "dgc/error.h"
#include "exchange/layout.h"

namespace dgc::train {
namespace {

constexpr const char* kOption = "--budget";
constexpr double kLeastRatio = 1e-6;
// Of the budget.
constexpr double kMostForWarmUp = 0.5;

[[noreturn]] void refuse(const std::string& option, const std::string& problem,
                         const std::string& hint) {
  throw Error(ErrorCode::invalid_argument, "train", option, problem, hint);
}

/// Bytes of a budget; `whole` are those of dense training.
double budget_bytes(const std::string& text, double whole) {
  if (text.empty() || text.back() != '%') return parse_bytes(kOption, text);
  double percent = 0.0;
  const char* const end = text.data() + text.size() - 1;
  const auto [rest, error] = std::from_chars(text.data(), end, percent);
  if (error != std::errc{} || rest != end || !(percent > 0.0) || percent > 100.0) {
    refuse(fmt::format("{} '{}'", kOption, text), "is not a percentage above 0, up to 100",
           "such as 1%, of what dense training receives");
  }
  return percent / 100.0 * whole;
}

/// Of one step.
double received_at(const RunTraffic& run, double ratio) {
  double message = exchange::kEmptyMessage;
  double dense = 0.0;
  CompressOptions options = run.compress;
  options.schedule = Schedule(ratio);
  for (const TensorSpec& tensor : run.model) {
    const exchange::Load load = exchange::load_of(tensor, options, 0);
    const ValueType values = exchange::values_of(options, load);
    const double frame = exchange::allgather_bytes(load, values, 2);
    // `auto` sends densely what is less that way; it looks at the time, which is near enough.
    const double apart = exchange::dense_bytes(load, ValueType::fp32, run.workers);
    if (run.algorithm == Algorithm::automatic && apart < frame * (run.workers - 1)) {
      dense += static_cast<double>(load.elements);
    } else {
      message += frame;
    }
  }
  return exchange::received_bytes(run.algorithm, message, dense, run.workers);
}

}  // namespace

double received_bytes(const RunTraffic& run, const Schedule& schedule) {
  double sum = 0.0;
  double ratio = -1.0;
  double each = 0.0;
  for (std::uint64_t step = 0; step < run.steps; ++step) {
    const double now = schedule.ratio_at(static_cast<std::int64_t>(step));
    if (now != ratio) each = received_at(run, ratio = now);
    sum += each;
  }
  return sum;
}

double dense_bytes(const RunTraffic& run) {
  double elements = 0.0;
  for (const TensorSpec& tensor : run.model) elements += static_cast<double>(tensor.elements());
  const double others = run.workers - 1;
  return static_cast<double>(run.steps) * 8.0 * elements * others / run.workers;
}

Schedule schedule_of(const Settings& settings, std::int64_t steps_per_epoch) {
  const double ratio = std::stod(settings.ratio);
  const std::vector<double> stages =
      settings.warmup_shape == "whole" ? std::vector<double>{1.0} : Schedule::paper_stages(ratio);
  const double steps = settings.warmup_epochs * static_cast<double>(steps_per_epoch);
  if (!settings.warmup || stages.empty() || steps <= 0.0) return Schedule(ratio);
  if (!(steps < 0x1p62)) {
    refuse("--warmup-epochs",
           fmt::format("{} epochs are more steps than can be counted", settings.warmup_epochs),
           "give fewer epochs than the run has, 4 for example");
  }
  const auto each = std::llround(steps / static_cast<double>(stages.size()));
  return Schedule::stages(stages, std::max<std::int64_t>(1, each), ratio);
}

Spending spend_budget(const Settings& settings, const RunTraffic& run) {
  const double whole = dense_bytes(run);
  const double budget = budget_bytes(settings.budget, whole);
  Settings tried = settings;
  // Warm-up sends more than the rest in the same time, and must leave something for it.
  tried.warmup = false;
  const double least = received_bytes(run, Schedule(kLeastRatio));
  if (least > budget) {
    refuse(fmt::format("{} {}", kOption, settings.budget),
           fmt::format("a worker would receive {:.3g} MB at the least, {:.2g} % of dense",
                       least / 1e6, 100.0 * least / whole),
           "give more");
  }
  tried.warmup = settings.warmup;
  tried.ratio = fmt::format("{}", kLeastRatio);
  const double warm = received_bytes(run, schedule_of(tried, run.steps_per_epoch)) - least;
  const double share = warm > 0.0 ? kMostForWarmUp * (budget - least) / warm : 1.0;
  if (share < 1.0) {
    tried.warmup_epochs *= share;
    // Each stage has a step at least: where these are too many, there is no warm-up.
    tried.warmup = received_bytes(run, schedule_of(tried, run.steps_per_epoch)) <= budget;
  }
  const auto at = [&](double ratio) {
    tried.ratio = fmt::format("{:.9g}", ratio);
    Spending one{schedule_of(tried, run.steps_per_epoch), 0.0,
                 tried.warmup ? tried.warmup_epochs : 0.0};
    one.bytes = received_bytes(run, one.schedule);
    return one;
  };
  Spending best = at(kLeastRatio);
  if (Spending all = at(1.0); all.bytes <= budget) return all;
  double low = std::log(kLeastRatio);
  double high = 0.0;
  for (int i = 0; i < 40; ++i) {
    const double middle = (low + high) / 2.0;
    if (const Spending one = at(std::exp(middle)); one.bytes <= budget) {
      best = one;
      low = middle;
    } else {
      high = middle;
    }
  }
  return best;
}

void check_budget(const std::string& text) { budget_bytes(text, 1.0); }

}  // namespace dgc::train
