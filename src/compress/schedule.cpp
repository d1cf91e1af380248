// Warm-up (paper, section 3.3): sparsity grows over the first epochs, because gradients change
// fastest then. Deviations: the stages are cut in steps, so that they may be parts of an epoch, and
// may be replaced by any list of ratios or by a smooth ramp.
#include "dgc/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <limits>

#include "dgc/error.h"

namespace dgc {
namespace {

__extension__ using Wide = __int128;  // of products of steps

/// The share that is sent in each stage: 75, 93.75, 98.4375 and 99.6 % sparsity.
constexpr double kPaperStages[] = {0.25, 0.0625, 0.015625, 0.004};
constexpr double kPaperRatio = 0.001;

[[noreturn]] void reject(std::string subject, std::string problem, std::string hint) {
  throw Error(ErrorCode::invalid_argument, "schedule", std::move(subject), std::move(problem),
              std::move(hint));
}

double checked_ratio(double ratio) {
  if (!(ratio > 0.0 && ratio <= 1.0)) {
    reject(fmt::format("ratio {}", ratio), "is not in (0, 1]",
           "the ratio is the share that is sent: 0.001 for 99.9 % sparsity");
  }
  return ratio;
}

std::int64_t checked_steps(std::int64_t steps) {
  if (steps < 1) reject(fmt::format("{} steps", steps), "is not a length", "give 1 or more");
  return steps;
}

template <typename T>
T number(std::string_view text, std::string_view whole) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) {
    reject(fmt::format("'{}'", whole), fmt::format("'{}' is not a number", text),
           "write 0.001, paper:4ep, 0.25,0.0625,0.001:1ep or exp:0.25,0.001:2ep");
  }
  return value;
}

std::vector<double> ratios_of(std::string_view list, std::string_view whole) {
  std::vector<double> ratios;
  while (true) {
    const std::size_t comma = list.find(',');
    ratios.push_back(number<double>(list.substr(0, comma), whole));
    if (comma == std::string_view::npos) return ratios;
    list.remove_prefix(comma + 1);
  }
}

/// "250" is steps, "1.5ep" epochs.
std::int64_t length_of(std::string_view text, std::string_view whole, std::int64_t per_epoch) {
  if (!text.ends_with("ep")) return number<std::int64_t>(text, whole);
  const auto epochs = number<double>(text.substr(0, text.size() - 2), whole);
  if (per_epoch < 1) {
    reject(fmt::format("'{}'", whole), "needs the number of steps in an epoch",
           "give the length in steps");
  }
  const double steps = epochs * static_cast<double>(per_epoch);
  // Also false for NaN.
  if (!(std::fabs(steps) < 0x1p63)) {
    reject(fmt::format("'{}'", whole),
           fmt::format("{} epochs are more steps than can be counted", epochs),
           "give the epochs of the warm-up, 4 for example");
  }
  return std::llround(steps);
}

}  // namespace

std::uint64_t entries_at(double ratio, std::uint64_t elements) noexcept {
  if (elements == 0) return 0;
  const double exact = ratio * static_cast<double>(elements);
  const double whole = std::nearbyint(exact);
  const double k = std::fabs(exact - whole) <= 1e-9 * exact ? whole : std::ceil(exact);
  return std::clamp<std::uint64_t>(static_cast<std::uint64_t>(k), 1, elements);
}

Schedule::Schedule(double ratio) : final_(checked_ratio(ratio)) {}

Schedule Schedule::stages(std::vector<double> ratios, std::int64_t steps_each, double final_ratio) {
  Schedule schedule(final_ratio);
  for (const double ratio : ratios) checked_ratio(ratio);
  if (ratios.empty()) return schedule;
  const auto count = static_cast<std::int64_t>(ratios.size());
  if (checked_steps(steps_each) > std::numeric_limits<std::int64_t>::max() / count) {
    reject(fmt::format("{} stages of {} steps", count, steps_each),
           "are more steps than can be counted", "give shorter stages");
  }
  schedule.warmup_steps_ = steps_each * count;
  schedule.stages_ = std::move(ratios);
  return schedule;
}

std::vector<double> Schedule::paper_stages(double final_ratio) {
  checked_ratio(final_ratio);
  std::vector<double> above;
  for (const double ratio : kPaperStages) {
    if (ratio > final_ratio) above.push_back(ratio);
  }
  return above;
}

Schedule Schedule::paper(std::int64_t warmup_steps) {
  if (warmup_steps == 0) return Schedule(kPaperRatio);
  Schedule schedule = stages(paper_stages(kPaperRatio), 1, kPaperRatio);
  schedule.warmup_steps_ = checked_steps(warmup_steps);
  return schedule;
}

Schedule Schedule::exponential(double first, double final_ratio, std::int64_t steps) {
  Schedule schedule(final_ratio);
  schedule.first_ = checked_ratio(first);
  schedule.warmup_steps_ = checked_steps(steps);
  return schedule;
}

Schedule Schedule::parse(std::string_view text, std::int64_t steps_per_epoch) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) {
    const std::vector<double> ratios = ratios_of(text, text);
    if (ratios.size() == 1) return Schedule(ratios[0]);
    reject(fmt::format("'{}'", text), "does not say how long a stage lasts",
           "append :1ep for one epoch each or :500 for 500 steps each");
  }
  const std::int64_t length = length_of(text.substr(colon + 1), text, steps_per_epoch);
  std::string_view kind = text.substr(0, colon);
  if (kind == "paper") return paper(length);
  const bool ramp = kind.starts_with("exp:");
  if (ramp) kind.remove_prefix(4);
  std::vector<double> ratios = ratios_of(kind, text);
  if (ramp) {
    if (ratios.size() == 2) return exponential(ratios[0], ratios[1], length);
    reject(fmt::format("'{}'", text), "needs two ratios", "write exp:FIRST,FINAL:LENGTH");
  }
  const double last = ratios.back();
  ratios.pop_back();
  return stages(std::move(ratios), length, last);
}

Schedule Schedule::raised(std::int64_t step, double ratio) const {
  checked_ratio(ratio);
  Schedule schedule = *this;
  std::erase_if(schedule.raises_, [&](const auto& raise) { return raise.first >= step; });
  schedule.raises_.emplace_back(step, ratio);
  return schedule;
}

double Schedule::ratio_at(std::int64_t step) const noexcept {
  const auto next =
      std::upper_bound(raises_.begin(), raises_.end(), step,
                       [](std::int64_t s, const auto& raise) { return s < raise.first; });
  return next == raises_.begin() ? planned_at(step)
                                 : std::max(planned_at(step), std::prev(next)->second);
}

double Schedule::planned_at(std::int64_t step) const noexcept {
  if (step >= warmup_steps_) return final_;
  step = std::max<std::int64_t>(step, 0);
  if (first_ > 0.0) {
    const double progress = static_cast<double>(step) / static_cast<double>(warmup_steps_);
    return first_ * std::pow(final_ / first_, progress);
  }
  const auto count = static_cast<Wide>(stages_.size());
  return stages_[static_cast<std::size_t>(step * count / warmup_steps_)];
}

std::int64_t Schedule::begin_of(std::size_t stage) const noexcept {
  // Where the steps do not divide evenly, a stage begins at the next whole step.
  const auto count = static_cast<Wide>(stages_.size());
  return static_cast<std::int64_t>((static_cast<Wide>(stage) * warmup_steps_ + count - 1) / count);
}

std::string Schedule::describe() const {
  std::string text;
  const auto line = [&](std::int64_t from, const std::string& to) {
    const double ratio = planned_at(from);
    text += fmt::format("steps {} {}: ratio {:.6g} (sparsity {:.6g} %)\n", from, to, ratio,
                        100.0 * (1.0 - ratio));
  };
  // By stage, never by step: a schedule may be longer than anybody wants to wait.
  if (first_ > 0.0) {
    const std::int64_t stride = std::max<std::int64_t>(1, warmup_steps_ / 10);
    for (std::int64_t step = 0;; step += stride) {
      line(step, "(ramp)");
      if (warmup_steps_ - step <= stride) break;
    }
  } else {
    std::int64_t begin = 0;
    for (std::size_t stage = 1; stage <= stages_.size(); ++stage) {
      // A stage may be empty where there are more of them than steps, or go on with its ratio.
      const std::int64_t end = begin_of(stage);
      if (end == begin || (end < warmup_steps_ && planned_at(end) == planned_at(begin))) continue;
      line(begin, fmt::format("to {}", end - 1));
      begin = end;
    }
  }
  line(warmup_steps_, "and on");
  for (const auto& [step, ratio] : raises_) {
    text += fmt::format("steps {} and on: ratio {:.6g} at the least\n", step, ratio);
  }
  return text;
}

}  // namespace dgc
