// Checkpoints of dgc::LocalSteps, between two rounds: the same files as those of dgc::Sgd.
//
//   model.pt       parameters and buffers
//   optimizer.pt   theta0 of parameters that are not float, outer momentum and rate, and of each
//                  rank its random state, its buffers, the caller's tensor, and its inner optimizer
//                  with its learning rates
//   rank files     the residual
//
// The inner optimizer's load() leaves options alone, hence the learning rates.
#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "checkpoint/load.h"
#include "checkpoint/save.h"
#include "dgc/checkpoint.h"
#include "torch/inner_state.h"
#include "torch/local_steps_impl.h"
#include "torch/saved_tensors.h"

namespace dgc {
namespace {

using namespace sgd;

constexpr const char* kInner = "inner";
constexpr const char* kInnerRates = "inner_lr";
constexpr const char* kOuterRate = "outer_lr";

/// By group; NaN where the options of an optimizer know no rate.
torch::Tensor rates_of(const torch::optim::Optimizer& inner) {
  std::vector<double> rates;
  for (const auto& group : inner.param_groups()) {
    try {
      rates.push_back(group.options().get_lr());
    } catch (const c10::Error&) {
      rates.push_back(std::numeric_limits<double>::quiet_NaN());
    }
  }
  return torch::tensor(rates, torch::kDouble);
}

/// What of a parameter is exact, where the parameter itself is not.
bool has_anchor(const LocalSteps::Impl& my, std::size_t tensor) {
  return my.parameters[my.trained[tensor]].tensor.scalar_type() != torch::kFloat;
}

torch::Tensor as_tensor(std::vector<float>& values, const torch::Tensor& like) {
  return torch::from_blob(values.data(), like.sizes());
}

/// model.pt and optimizer.pt.
std::pair<std::vector<char>, std::vector<char>> pickled_parts(LocalSteps::Impl& my,
                                                              const torch::Tensor& given) {
  Dictionary mine;
  mine.insert("random", random_state());
  mine.insert(kInner, inner_state(my.inner));
  mine.insert(kInnerRates, rates_of(my.inner));
  if (given.defined()) mine.insert(kGiven, snapshot(given));
  for (const auto& [name, buffer] : my.buffers.all())
    mine.insert("buffer/" + name, snapshot(buffer));
  Dictionary rest;
  add_of_all_ranks(my.group, mine, rest);
  rest.insert(kOuterRate, torch::tensor(my.outer_lr, torch::kDouble));

  Dictionary model;
  for (const Parameter& parameter : my.parameters) {
    model.insert(parameter.name, snapshot(parameter.tensor));
    for (const std::string& alias : parameter.aliases)
      model.insert(alias, model.at(parameter.name));
  }
  for (const auto& [name, buffer] : my.buffers.all())
    model.insert(name, rest.at("rank/0/buffer/" + name));
  for (std::size_t t = 0; t < my.trained.size(); ++t) {
    const Parameter& parameter = my.parameter(t);
    if (has_anchor(my, t)) {
      rest.insert("anchor/" + parameter.name, as_tensor(my.anchors[t], parameter.tensor));
    }
    if (!my.momentum.empty()) {
      rest.insert("momentum/" + parameter.name, as_tensor(my.momentum[t], parameter.tensor));
    }
  }
  return {pickled(model), pickled(rest)};
}

/// Everything that a load changes but the residual and the inner optimizer, found and checked.
struct Loaded {
  std::vector<std::pair<torch::Tensor, torch::Tensor>> assignments;  ///< ours, and its new values
  torch::Tensor outer_lr;
  torch::Tensor inner;
  torch::Tensor inner_rates;
  torch::Tensor random;
  torch::Tensor given;
};

Loaded read_tensors(LocalSteps::Impl& my, const SavedTensors& model, const SavedTensors& rest,
                    int workers) {
  Loaded loaded;
  for (const Parameter& parameter : my.parameters) {
    if (!parameter.frozen) continue;
    loaded.assignments.emplace_back(parameter.tensor, model.at(parameter.name, parameter.tensor));
  }
  for (std::size_t t = 0; t < my.trained.size(); ++t) {
    const Parameter& parameter = my.parameter(t);
    const torch::Tensor anchor = as_tensor(my.anchors[t], parameter.tensor);
    const torch::Tensor& saved = model.at(parameter.name, parameter.tensor);
    loaded.assignments.emplace_back(
        anchor, has_anchor(my, t) ? rest.at("anchor/" + parameter.name, anchor) : saved);
    if (!my.momentum.empty()) {
      const torch::Tensor momentum = as_tensor(my.momentum[t], parameter.tensor);
      loaded.assignments.emplace_back(momentum, rest.at("momentum/" + parameter.name, momentum));
    }
  }
  const int old_rank = my.group.rank() % workers;
  const auto of_rank = [old_rank](const std::string& name) {
    return fmt::format("rank/{}/{}", old_rank, name);
  };
  for (const auto& [name, buffer] : my.buffers.all()) {
    loaded.assignments.emplace_back(buffer, rest.at(of_rank("buffer/" + name), buffer));
  }
  loaded.outer_lr = rest.at(kOuterRate, torch::tensor(0.0, torch::kDouble));
  loaded.inner = rest.get(of_rank(kInner));
  if (!loaded.inner.defined()) {
    throw Error(ErrorCode::state_mismatch, "load", rest.subject(),
                fmt::format("has no '{}'", of_rank(kInner)),
                "it was not written by local steps; nothing was loaded");
  }
  loaded.inner_rates = rest.at(of_rank(kInnerRates), rates_of(my.inner));
  if (my.group.size() == workers) loaded.given = rest.get(of_rank(kGiven));
  const torch::Tensor& random = rest.at(of_rank("random"), random_state());
  if (my.group.rank() < workers) loaded.random = random;
  return loaded;
}

}  // namespace

CheckpointInfo save_checkpoint(const std::filesystem::path& folder, LocalSteps& local,
                               const std::string& user, int keep, const torch::Tensor& mine) {
  LocalSteps::Impl& my = local::Internals::of(local);
  my.require_round("save");
  const torch::NoGradGuard no_grad;
  const auto [model, rest] = telling_others(my.group, [&] { return pickled_parts(my, mine); });
  CheckpointInfo info{
      .step = my.exchange->state().step(), .user = user, .workers = my.group.size()};
  info.path = checkpoint::save(my.group, folder,
                               {.step = info.step,
                                .user = user,
                                .shared = {{kModelFile, std::as_bytes(std::span(model))},
                                           {kOptimizerFile, std::as_bytes(std::span(rest))}},
                                .state = &my.exchange->state()},
                               keep);
  return info;
}

std::optional<CheckpointInfo> load_checkpoint(const std::filesystem::path& folder,
                                              LocalSteps& local,
                                              std::optional<std::uint64_t> step) {
  LocalSteps::Impl& my = local::Internals::of(local);
  if (my.failure) my.require_round("load");
  const torch::NoGradGuard no_grad;
  const auto found = checkpoint::open(my.group, folder, step);
  if (!found) return {};
  const auto [model, rest] = telling_others(my.group, [&] {
    return std::pair(SavedTensors(*found, kModelFile), SavedTensors(*found, kOptimizerFile));
  });
  const Loaded loaded = read_tensors(my, model, rest, found->workers());
  InnerChange inner(my.inner, loaded.inner, rest.subject());
  found->load_state(my.exchange->state());  // the last thing that can fail
  inner.keep();
  for (const auto& [ours, theirs] : loaded.assignments) ours.copy_(theirs);
  for (std::size_t g = 0; g < my.inner.param_groups().size(); ++g) {
    const double rate = loaded.inner_rates[static_cast<std::int64_t>(g)].item<double>();
    if (!std::isnan(rate)) my.inner.param_groups()[g].options().set_lr(rate);
  }
  my.outer_lr = loaded.outer_lr.item<double>();
  if (loaded.random.defined()) set_random_state(loaded.random);
  my.publish_all();
  my.local_step = 0;
  my.stats = {};
  return CheckpointInfo{.step = found->step(),
                        .user = found->user(),
                        .workers = found->workers(),
                        .path = found->path(),
                        .mine = loaded.given};
}

}  // namespace dgc
