#include "train/optimizer.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>

#include "exchange/options.h"
#include "train/budget.h"
#include "train/defaults.h"

namespace dgc::train {
namespace {

/// Every tensor once, also where modules share it.
std::vector<TensorSpec> specs_of(const torch::nn::Module& model) {
  std::vector<TensorSpec> specs;
  std::set<const void*> seen;
  for (const auto& item : model.named_parameters()) {
    if (!seen.insert(item.value().unsafeGetTensorImpl()).second) continue;
    specs.push_back(TensorSpec::of(item.key(), item.value().sizes().vec()));
  }
  return specs;
}

/// All but the schedule.
SgdOptions options_of(const Settings& settings) {
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
  options.weight_decay(settings.weight_decay);
  return options;
}

}  // namespace

OptimizerChoice choose_optimizer(const Settings& settings, const std::string& mode,
                                 const torch::nn::Module& model, const RunSize& run) {
  Chosen chosen = with_defaults(settings, run.workers, run.steps);
  OptimizerChoice choice{options_of(chosen.settings), std::move(chosen.reason)};
  SgdOptions& options = choice.options;
  if (sends_all(mode)) {
    options.momentum_correction(MomentumCorrection::local)
        .algorithm(Algorithm::dense)
        .dense_transport(mode == "dense" ? ValueType::fp32 : ValueType::fp16)
        .dense_values(ValueType::fp32)
        .values(ValueType::fp32)
        .schedule(Schedule(1.0));
    choice.reason.clear();
    return choice;
  }
  if (mode == "naive") {
    // Sparsification alone: what the paper's four corrections are measured against.
    options.momentum_correction(MomentumCorrection::off).masking(false).clip_norm(0.0);
    chosen.settings.warmup = false;
  }
  choice.controlled = settings.ratio == kAutoRatio && run.workers > 1;
  // An algorithm that was chosen by name measures nothing by itself.
  options.exchange.measure = choice.controlled;
  if (settings.budget.empty()) {
    options.schedule(schedule_of(chosen.settings, run.steps_per_epoch));
    return choice;
  }
  const RunTraffic traffic{.model = specs_of(model),
                           .compress = options.compress,
                           .algorithm = options.algorithm(),
                           .workers = run.workers,
                           .steps = run.steps,
                           .steps_per_epoch = run.steps_per_epoch};
  const Spending spending = spend_budget(chosen.settings, traffic);
  options.schedule(spending.schedule);
  const auto last = static_cast<std::int64_t>(run.steps);
  choice.reason += fmt::format(
      "{}budget {}: {:.2g} epochs of warm-up, then {:.3g} %; {:.4g} MB to receive, {:.2g} % of "
      "dense",
      choice.reason.empty() ? "" : "; ", settings.budget, spending.warmup_epochs,
      100.0 * spending.schedule.ratio_at(last), spending.bytes / 1e6,
      run.workers > 1 ? 100.0 * spending.bytes / dense_bytes(traffic) : 0.0);
  return choice;
}

}  // namespace dgc::train
