// A step: wait for the gradients of all ranks, then decay, add, commit, and count.
#include <fmt/format.h>

#include <chrono>
#include <cmath>

#include "compress/decay.h"
#include "engine/ended.h"
#include "torch/describe.h"
#include "torch/sgd_impl.h"

namespace dgc {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

std::vector<std::span<float>> Sgd::Impl::targets_of_step() {
  std::size_t now = 0;
  for (const auto& g : param_groups) now += g.params().size();
  if (now != given) {
    throw Error(ErrorCode::wrong_order, "Sgd", "param_groups",
                "parameters were added after construction", "make a new optimizer");
  }
  for (std::size_t g = 0; g < param_groups.size(); ++g) {
    const double lr = param_groups[g].options().get_lr();
    if (std::isfinite(lr)) continue;
    throw Error(ErrorCode::invalid_argument, "Sgd", fmt::format("group {}", g),
                fmt::format("its learning rate is {} in step {}", lr, exchange->state().step()),
                "look at the learning-rate scheduler");
  }
  for (const sgd::Parameter& parameter : parameters) {
    if (!parameter.frozen || !parameter.tensor.grad().defined()) continue;
    throw Error(ErrorCode::wrong_order, "Sgd", fmt::format("parameter '{}'", parameter.name),
                "did not require a gradient at construction, and has one now",
                "set requires_grad before the optimizer is made");
  }
  std::vector<std::span<float>> targets;
  for (std::size_t t = 0; t < trained.size(); ++t) {
    targets.push_back(parameter(t).values());
    const bool decays = group_of(t).weight_decay() != 0.0 && options.momentum() != 0.0f;
    if ((decays || momentum_is_late()) && decay[t].empty()) decay[t].resize(targets[t].size());
  }
  return targets;
}

void Sgd::Impl::step() {
  if (pipeline->failure()) throw ended_earlier(*pipeline->failure());
  std::vector<std::span<float>> targets;
  try {
    targets = targets_of_step();
  } catch (const std::exception& error) {
    // The others are on their way into this step, or have it half behind them.
    pipeline->abandon(as_error(error));
    throw;
  }
  Collected collected = pipeline->finish();
  pipeline->reset();
  stats = {
      .step = exchange->state().step(),
      .skipped = collected.skipped,
      .ratio = options.schedule().ratio_at(static_cast<std::int64_t>(exchange->state().step())),
      .waiting = collected.seconds.waiting};
  stop |= collected.stop;
  if (!collected.skipped) {
    const auto start = std::chrono::steady_clock::now();
    try {
      apply(collected, targets);
    } catch (const std::exception& error) {  // no memory, say: the others would go on without us
      pipeline->abandon(as_error(error));
      throw;
    }
    stats.apply = seconds_since(start);
  }
  const auto applied = std::chrono::steady_clock::now();
  sgd::describe_step(collected, *exchange, elements, group.size(), stats);
  stats.statistics = collected.seconds.statistics + seconds_since(applied);
  if (collected.skipped) return;
  exchange->commit(collected, targets);
  const auto every = static_cast<std::uint64_t>(options.buffers_every());
  if (every != 0 && exchange->state().step() % every == 0) buffers.synchronize();
}

sgd::Decay Sgd::Impl::decay_of(std::size_t tensor) const {
  return {.weight_decay = static_cast<float>(group_of(tensor).weight_decay()),
          .lr = static_cast<float>(group_of(tensor).lr()),
          .momentum = options.momentum(),
          .nesterov = options.nesterov()};
}

void Sgd::Impl::apply_without_correction(const Collected& collected,
                                         std::span<const std::span<float>> targets) {
  std::vector<std::vector<float>> sums(trained.size());
  std::vector<std::span<float>> views;
  for (std::size_t t = 0; t < trained.size(); ++t) {
    sums[t].resize(targets[t].size());
    views.emplace_back(sums[t]);
  }
  exchange->apply(collected, views, 1.0f);
  for (std::size_t t = 0; t < trained.size(); ++t) {
    if (!collected.present[t]) continue;
    sgd::apply_late_momentum(decay_of(t), sums[t], targets[t], decay[t]);
    parameter(t).publish();
  }
}

void Sgd::Impl::apply(const Collected& collected, std::span<const std::span<float>> targets) {
  if (momentum_is_late()) return apply_without_correction(collected, targets);
  std::vector<float> alphas(trained.size());
  for (std::size_t t = 0; t < trained.size(); ++t) {
    const SgdGroupOptions& of_group = group_of(t);
    alphas[t] = static_cast<float>(-of_group.lr());
    if (!collected.present[t]) continue;
    // First, while w is still what the gradients were computed at.
    if (of_group.weight_decay() == 0.0 && decay[t].empty()) continue;
    sgd::apply_decay(decay_of(t), targets[t], decay[t]);
  }
  exchange->apply(collected, targets, alphas);
  for (std::size_t t = 0; t < trained.size(); ++t) {
    if (collected.present[t]) parameter(t).publish();
  }
}

}  // namespace dgc
