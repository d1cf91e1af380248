// Which share of each gradient is sent at which step: warm-up, then the final ratio.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dgc {

/// Number of entries to send of a tensor: max(1, ceil(ratio · elements)); 0 for an empty tensor.
/// Products that are whole but for binary rounding (0.07 · 100) are not rounded up.
std::uint64_t entries_at(double ratio, std::uint64_t elements) noexcept;

/// A ratio (1 - sparsity) for every step. Immutable; cheap to copy.
class Schedule {
 public:
  /// The same ratio at every step.
  explicit Schedule(double ratio = 0.001);

  /// `ratios[i]` during steps [i·steps_each, (i+1)·steps_each), `final_ratio` afterwards.
  /// For stages of whole epochs pass the steps of an epoch. Throws Error(invalid_argument) for
  /// ratios outside (0, 1] and for stages that are together longer than 2^63 - 1 steps.
  static Schedule stages(std::vector<double> ratios, std::int64_t steps_each, double final_ratio);

  /// The paper's warm-up: sparsity 75, 93.75, 98.4375 and 99.6 % in four equal parts of
  /// `warmup_steps`, then 99.9 %. CIFAR-10 and ImageNet: 4 epochs; PTB and speech: 1 epoch.
  static Schedule paper(std::int64_t warmup_steps);

  /// The ratios of that warm-up that are above `final_ratio`, for stages() with another end.
  static std::vector<double> paper_stages(double final_ratio = 0.001);

  /// From `first` to `final_ratio` in equal factors per step over `steps` steps.
  static Schedule exponential(double first, double final_ratio, std::int64_t steps);

  /// What a user writes: "0.001", "paper:4ep", "paper:1000", "0.25,0.0625,0.001:1ep" (each stage
  /// one epoch, the last for good), "exp:0.25,0.001:2ep". "ep" multiplies by `steps_per_epoch`,
  /// which may be 0 where it is not used. Throws Error(invalid_argument).
  static Schedule parse(std::string_view text, std::int64_t steps_per_epoch);

  /// The ratio in (0, 1] at `step`, counted from 0.
  double ratio_at(std::int64_t step) const noexcept;

  /// First step from which the final ratio holds. What raised() asks for does not count.
  std::int64_t warmup_steps() const noexcept { return warmup_steps_; }

  /// The same, but from `step` on never less than `ratio`, in place of what raised() asked for from
  /// there on before. Throws Error(invalid_argument).
  Schedule raised(std::int64_t step, double ratio) const;

  /// One line per stage (or per tenth of a ramp), with the ratios of ratio_at.
  std::string describe() const;

 private:
  double planned_at(std::int64_t step) const noexcept;
  /// First step of a stage; of the one after the last, that of the final ratio.
  std::int64_t begin_of(std::size_t stage) const noexcept;

  std::vector<double> stages_;  // of equal length; empty: constant, or a ramp if first_ > 0
  double first_ = 0.0;          // start of an exponential ramp; 0: none
  double final_ = 0.001;
  std::int64_t warmup_steps_ = 0;
  std::vector<std::pair<std::int64_t, double>> raises_;  // by step: the least from there on
};

}  // namespace dgc
