// One table, from the results in docs/accuracy.md.
//
// The published form: each worker corrects its own momentum, sends 0.1 % to everybody and warms up.
// It holds with few workers. With many, a worker's entry is mostly its own noise, and momentum of
// its own pushes on where the others have moved the parameters meanwhile. Owners that select from
// the sum, and momentum of what all applied, hold there. How much they send follows from the length
// of the run: an entry waits for about 1/ratio steps, and that has to be a small part of it.
// Entries of 4 bits leave room for more of them.
#include "train/defaults.h"

#include <fmt/format.h>

#include <algorithm>

#include "dgc/schedule.h"
#include "train/recipe.h"

namespace dgc::train {
namespace {

constexpr double kPublishedRatio = 0.001;
// Times that a run sends as many entries as the model has, at the least.
constexpr double kCoverage = 95.0;
// The same with all-gather, where each worker sends entries of its own.
constexpr double kLeastCoverage = 7.0;
// A run that is too short for that sends this much: a worker receives about 1/20 of dense's bytes.
constexpr double kMostRatio = 0.135;
constexpr int kManyWorkers = 16;

struct Row {
  const char* momentum_correction;
  const char* algorithm;
  bool covers;  ///< the ratio follows from the number of steps
  const char* values;
  const char* warmup_shape;
  double warmup;  ///< of the recipe's epochs of warm-up
  const char* why;
};
constexpr Row kFew = {.momentum_correction = "local",
                      .algorithm = "auto",
                      .covers = false,
                      .values = "fp16",
                      .warmup_shape = "paper",
                      .warmup = 1.0,
                      .why = "the published form holds with few workers"};
constexpr Row kMany = {.momentum_correction = "global",
                       .algorithm = "owner",
                       .covers = true,
                       .values = "table4",
                       .warmup_shape = "whole",
                       .warmup = 0.5,
                       .why = "16 workers and more need owners and global momentum"};
constexpr Row kManyRecurrent = {.momentum_correction = "local",
                                .algorithm = "auto",
                                .covers = false,
                                .values = "fp16",
                                .warmup_shape = "paper",
                                .warmup = 1.0,
                                .why = "the published form, for recurrent models"};

const Row& row_for(int workers, Family family) {
  if (workers < kManyWorkers) return kFew;
  return family == Family::images ? kMany : kManyRecurrent;
}

double covering_ratio(double coverage, std::uint64_t steps) {
  const double ratio = coverage / static_cast<double>(std::max<std::uint64_t>(1, steps));
  return std::clamp(ratio, kPublishedRatio, kMostRatio);
}

}  // namespace

Chosen with_defaults(Settings settings, int workers, std::uint64_t steps) {
  const Row& row = row_for(workers, family_of(settings.model));
  Chosen chosen{std::move(settings), {}};
  Settings& s = chosen.settings;
  const auto say = [&](const std::string& words) {
    chosen.reason += (chosen.reason.empty() ? "" : ", ") + words;
  };
  // Momentum and owners go together: whoever sets one of them knows what he wants of the other.
  if (s.momentum_correction == "auto") {
    s.momentum_correction = row.momentum_correction;
    if (s.algorithm == "auto") s.algorithm = row.algorithm;
    say(fmt::format("momentum correction {}, exchange {}", s.momentum_correction, s.algorithm));
  }
  const bool controlled = s.ratio == kAutoRatio;
  const bool open = controlled || s.ratio == kDefaultRatio;
  if (open && s.budget.empty()) {
    double ratio = row.covers ? covering_ratio(kCoverage, steps) : kPublishedRatio;
    if (controlled) ratio = std::max(ratio, covering_ratio(kLeastCoverage, steps));
    s.ratio = fmt::format("{:.4g}", ratio);
    say(fmt::format("ratio {:.3g} %{}", 100.0 * ratio, controlled ? " or more" : ""));
  }
  // A format that somebody did not choose follows the ratio.
  if (s.values == "auto") s.values = open ? row.values : kFew.values;
  if (s.warmup_shape == "auto") {
    // A ratio that somebody chose has the paper's warm-up, as it always had.
    s.warmup_shape = open ? row.warmup_shape : "paper";
    if (open && s.warmup) {
      s.warmup_epochs *= row.warmup;
      const std::string length = fmt::format(", {:.3g} epochs", s.warmup_epochs);
      say(fmt::format("warm-up {}{}", s.warmup_shape, s.budget.empty() ? length : ""));
    }
  }
  const bool sends_whole = s.warmup && s.warmup_shape == "whole";
  if (s.dense_values == "auto") s.dense_values = sends_whole ? "int8" : "fp32";
  if (!chosen.reason.empty()) chosen.reason += fmt::format(": {}", row.why);
  return chosen;
}

}  // namespace dgc::train
