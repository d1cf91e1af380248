// A round: what the parameters changed by goes the way of gradients, and theta0 takes what comes
// back. dgc/local_steps.h has the scheme (DiLoCo, arXiv 2311.08105; SparseLoCo, arXiv 2508.15706);
// the residual, its decay and the selection are the compressor's.
//
// The change is computed in the place of theta, which nobody needs until theta0 is known again: so
// a round takes no memory of its own. Buckets are computed one after the other, and exchanged by
// the exchange's thread meanwhile.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "engine/ended.h"
#include "torch/describe.h"
#include "torch/local_steps_impl.h"

namespace dgc {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

std::span<float> LocalSteps::Impl::change_of(std::size_t tensor) {
  if (!apart[tensor].empty()) return apart[tensor];
  return parameter(tensor).values();
}

void LocalSteps::Impl::compute_change(std::size_t tensor) {
  const sgd::Parameter& p = parameter(tensor);
  const std::span<const float> anchor = anchors[tensor];
  if (apart[tensor].empty()) {
    const std::span<float> theta = parameter(tensor).values();
    for (std::size_t i = 0; i < theta.size(); ++i) theta[i] = anchor[i] - theta[i];
    return;
  }
  // The inner optimizer began at theta0 as the parameter's type rounds it.
  const torch::Tensor theta0 =
      torch::from_blob(anchors[tensor].data(), p.tensor.sizes()).to(p.tensor.scalar_type());
  const torch::Tensor change =
      sgd::as_contiguous_float(theta0) - sgd::as_contiguous_float(p.tensor);
  if (change.numel() != p.elements) p.refuse_changed();
  std::copy_n(change.data_ptr<float>(), change.numel(), apart[tensor].begin());
}

void LocalSteps::Impl::publish(std::size_t tensor) {
  sgd::Parameter& p = parameter(tensor);
  if (apart[tensor].empty()) {
    std::copy(anchors[tensor].begin(), anchors[tensor].end(), p.values().begin());
    p.publish();
    return;
  }
  const torch::NoGradGuard no_grad;
  p.tensor.copy_(torch::from_blob(anchors[tensor].data(), p.tensor.sizes()));
}

void LocalSteps::Impl::publish_all() {
  for (std::size_t t = 0; t < trained.size(); ++t) publish(t);
}

std::vector<std::span<float>> LocalSteps::Impl::anchor_spans() {
  return {anchors.begin(), anchors.end()};
}

void LocalSteps::Impl::apply(const Collected& collected) {
  if (!momentum.empty()) return apply_with_momentum(collected);
  exchange->apply(collected, anchor_spans(), static_cast<float>(-outer_lr));
}

/// Nesterov on the mean change, as torch::optim::SGD has it: b = m·b + g, theta0 -= lr·(g + m·b).
void LocalSteps::Impl::apply_with_momentum(const Collected& collected) {
  std::vector<std::span<float>> sums;  // the changes are sent, and their place is free
  for (std::size_t t = 0; t < trained.size(); ++t) {
    sums.push_back(change_of(t));
    std::fill(sums[t].begin(), sums[t].end(), 0.0f);
  }
  exchange->apply(collected, sums, 1.0f);
  const auto m = static_cast<float>(options.outer_momentum());
  const auto lr = static_cast<float>(outer_lr);
  for (std::size_t t = 0; t < trained.size(); ++t) {
    float* const b = momentum[t].data();
    float* const theta0 = anchors[t].data();
    for (std::size_t i = 0; i < sums[t].size(); ++i) {
      b[i] = m * b[i] + sums[t][i];
      theta0[i] -= lr * (sums[t][i] + m * b[i]);
    }
  }
}

void LocalSteps::Impl::round() {
  const Clock::time_point start = Clock::now();
  double computing = 0.0;
  std::size_t computed = 0;
  const torch::NoGradGuard no_grad;
  std::optional<Collected> collected;
  try {
    for (const auto& bucket : plan) {
      const Clock::time_point begin = Clock::now();
      std::vector<Gradient> changes;
      for (const std::size_t t : bucket) {
        compute_change(t);
        ++computed;
        changes.push_back({t, change_of(t)});
      }
      computing += seconds_since(begin);
      exchange->submit(changes);
    }
    collected = exchange->finish();
    stats = {
        .step = exchange->state().step(),
        .skipped = collected->skipped,
        .ratio = options.schedule().ratio_at(static_cast<std::int64_t>(exchange->state().step())),
        .waiting = seconds_since(start) - computing};
    const Clock::time_point applying = Clock::now();
    if (!collected->skipped) apply(*collected);
    publish_all();
    stats.apply = seconds_since(applying);
  } catch (const std::exception& error) {
    give_up(as_error(error), computed);
    throw;
  }
  stop |= collected->stop;
  local_step = 0;
  const Clock::time_point applied = Clock::now();
  sgd::describe_step(*collected, *exchange, elements, group.size(), stats);
  stats.compress += computing;
  stats.statistics = collected->seconds.statistics + seconds_since(applied);
  if (!collected->skipped) exchange->commit(*collected, anchor_spans());
}

void LocalSteps::Impl::give_up(const Error& cause, std::size_t computed) noexcept {
  if (!failure) failure = cause;
  std::vector<Gradient> changes;
  std::size_t at = 0;
  for (const auto& bucket : plan) {
    for (const std::size_t t : bucket) {
      try {
        if (at++ >= computed) compute_change(t);
        changes.push_back({t, change_of(t)});
      } catch (const std::exception&) {  // it is not a tensor of this model any more
      }
    }
  }
  exchange->abandon(cause, changes);
  local_step = 0;
  for (std::size_t t = 0; t < trained.size(); ++t) {
    try {
      publish(t);
    } catch (const std::exception&) {
    }
  }
}

}  // namespace dgc
