#include "train/optimizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>

#include "exchange/options.h"
#include "train/budget.h"
#include "train/defaults.h"

namespace dgc::train {
namespace {

constexpr double kBeta1 = 0.9;
constexpr double kBeta2 = 0.95;

/// Options that mean something to compressed rounds of local steps, where they are not auto.
constexpr std::array kOfLocalSteps = {"values", "dense_values", "algorithm", "mean"};

std::vector<TensorSpec> specs_of(const torch::nn::Module& model) {
  std::vector<TensorSpec> specs;
  for (const auto& [name, tensor] : distinct_parameters(model)) {
    specs.push_back(TensorSpec::of(name, tensor.sizes().vec()));
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
  options.exchange.mean = Mean::workers;  // a setting of local steps
  return options;
}

}  // namespace

std::vector<std::pair<std::string, torch::Tensor>> distinct_parameters(
    const torch::nn::Module& model) {
  std::vector<std::pair<std::string, torch::Tensor>> all;
  std::set<const void*> seen;
  for (const auto& item : model.named_parameters()) {
    if (!seen.insert(item.value().unsafeGetTensorImpl()).second) continue;
    all.emplace_back(item.key(), item.value());
  }
  return all;
}

std::unique_ptr<torch::optim::Optimizer> make_inner(const Settings& settings,
                                                    const torch::nn::Module& model) {
  std::vector<torch::Tensor> matrices;
  std::vector<torch::Tensor> vectors;
  for (const auto& [name, parameter] : distinct_parameters(model)) {
    (parameter.dim() > 1 ? matrices : vectors).push_back(parameter);
  }
  if (settings.inner == "adamw") {
    const auto options = [&](double decay) {
      return std::make_unique<torch::optim::AdamWOptions>(
          torch::optim::AdamWOptions(settings.lr).betas({kBeta1, kBeta2}).weight_decay(decay));
    };
    std::vector<torch::optim::OptimizerParamGroup> groups;
    if (!matrices.empty()) groups.emplace_back(matrices, options(settings.weight_decay));
    if (!vectors.empty()) groups.emplace_back(vectors, options(0.0));
    return std::make_unique<torch::optim::AdamW>(std::move(groups),
                                                 torch::optim::AdamWOptions(settings.lr));
  }
  std::vector<torch::Tensor> all = std::move(matrices);
  all.insert(all.end(), vectors.begin(), vectors.end());
  if (settings.inner == "adam") {
    return std::make_unique<torch::optim::Adam>(std::move(all),
                                                torch::optim::AdamOptions(settings.lr)
                                                    .betas({kBeta1, kBeta2})
                                                    .weight_decay(settings.weight_decay));
  }
  return std::make_unique<torch::optim::SGD>(std::move(all),
                                             torch::optim::SGDOptions(settings.lr)
                                                 .momentum(settings.momentum)
                                                 .nesterov(settings.nesterov)
                                                 .weight_decay(settings.weight_decay));
}

LocalStepsOptions local_options(const Settings& settings, const std::string& mode) {
  const int steps = static_cast<int>(settings.local_steps);
  if (mode == "diloco") {
    LocalStepsOptions options = LocalStepsOptions::diloco(steps);
    options.outer_lr(number_or(settings.outer_lr, options.outer_lr()));
    return options;
  }
  LocalStepsOptions options(steps);
  options.outer_lr(number_or(settings.outer_lr, options.outer_lr()));
  options.residual_decay(number_or(settings.residual_decay, options.residual_decay()));
  // What --ratio auto decides is for steps of dgc::Sgd: a run that has both modes gives rounds
  // theirs.
  const bool given = settings.ratio != kDefaultRatio && settings.ratio != kAutoRatio;
  if (given) options.schedule(Schedule(std::stod(settings.ratio)));
  for (const Field& field : fields()) {
    if (std::find(kOfLocalSteps.begin(), kOfLocalSteps.end(), field.option) ==
        kOfLocalSteps.end()) {
      continue;
    }
    const std::string text = to_json(settings).at(field.name).get<std::string>();
    if (text == "auto") continue;
    if (!set_option(compress_options(), options.compress, field.option, text)) {
      set_option(exchange_options(), options.exchange, field.option, text);
    }
  }
  return options;
}

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
