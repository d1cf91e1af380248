// How much of the gradients a run sends, step by step: --ratio, --budget and the warm-up.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dgc/compressor.h"
#include "dgc/exchange.h"
#include "train/settings.h"

namespace dgc::train {

/// What a run exchanges, as far as its bytes are concerned.
struct RunTraffic {
  std::vector<TensorSpec> model;
  CompressOptions compress;  ///< its schedule is not looked at
  Algorithm algorithm = Algorithm::automatic;
  int workers = 1;
  std::uint64_t steps = 0;
  std::int64_t steps_per_epoch = 0;
};

/// Bytes that a worker receives in the whole run with this schedule, predicted.
double received_bytes(const RunTraffic& run, const Schedule& schedule);
/// The same with dense fp32 gradients: what a percentage is of.
double dense_bytes(const RunTraffic& run);

/// --ratio with the warm-up before it. "auto" must have been replaced (with_defaults).
Schedule schedule_of(const Settings& settings, std::int64_t steps_per_epoch);

/// The schedule that spends --budget: the warm-up of the settings, shortened where it would take
/// more than half, then one ratio.
struct Spending {
  Schedule schedule;
  double bytes = 0.0;          ///< that it is predicted to receive
  double warmup_epochs = 0.0;  ///< 0: none
};
/// Throws Error(invalid_argument) for a budget that cannot be read, and for one below what the
/// smallest messages would take.
Spending spend_budget(const Settings& settings, const RunTraffic& run);
/// Throws Error(invalid_argument) where it is neither bytes ("40MB") nor a percentage ("1%").
void check_budget(const std::string& text);

}  // namespace dgc::train
