#include "train/optimizer.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "dgc/error.h"
#include "dgc/schedule.h"
#include "exchange/options.h"

namespace dgc::train {
namespace {

/// The paper's warm-up, as far as it is above the final ratio; or one stage that sends all.
Schedule schedule_of(const Settings& settings, std::int64_t steps_per_epoch) {
  const std::vector<double> stages = settings.warmup_shape == "whole"
                                         ? std::vector<double>{1.0}
                                         : Schedule::paper_stages(settings.ratio);
  const double steps = settings.warmup_epochs * static_cast<double>(steps_per_epoch);
  if (!settings.warmup || stages.empty() || steps <= 0.0) return Schedule(settings.ratio);
  if (!(steps < 0x1p62)) {
    throw Error(ErrorCode::invalid_argument, "train", "--warmup-epochs",
                fmt::format("{} epochs are more steps than can be counted", settings.warmup_epochs),
                "give fewer epochs than the run has, 4 for example");
  }
  const auto each = std::llround(steps / static_cast<double>(stages.size()));
  return Schedule::stages(stages, std::max<std::int64_t>(1, each), settings.ratio);
}

}  // namespace

SgdOptions optimizer_options(const Settings& settings, const std::string& mode,
                             std::int64_t steps_per_epoch) {
  SgdOptions options(settings.lr);
  const nlohmann::ordered_json given = to_json(settings);
  for (const Field& field : fields()) {
    if (field.option.empty()) continue;
    const auto& value = given.at(field.name);
    const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
    if (!set_option(compress_options(), options.compress, field.option, text)) {
      set_option(exchange_options(), options.exchange, field.option, text);
    }
  }
  if (!settings.clipping) options.clip_norm(0.0);
  options.weight_decay(settings.weight_decay).schedule(schedule_of(settings, steps_per_epoch));
  if (mode == "naive") {
    // Sparsification alone: what the paper's four corrections are measured against.
    options.momentum_correction(MomentumCorrection::off).masking(false).clip_norm(0.0).schedule(
        Schedule(settings.ratio));
  } else if (sends_all(mode)) {
    options.momentum_correction(MomentumCorrection::local)
        .algorithm(Algorithm::dense)
        .dense_transport(mode == "dense" ? ValueType::fp32 : ValueType::fp16)
        .dense_values(ValueType::fp32)
        .values(ValueType::fp32)
        .schedule(Schedule(1.0));
  }
  return options;
}

}  // namespace dgc::train
