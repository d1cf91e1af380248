// Checkpoints of dgc::Sgd. src/checkpoint writes and finds the files; here is what goes into them.
//
//   model.pt       parameters and buffers, for those who want the model alone: a dictionary that
//                  Python's torch.load reads
//   optimizer.pt   what else is not u and v: momentum of weight decay, fp32 masters, learning
//                  rates, and of each rank its random state, buffers and the caller's tensor
//   rank files     u and v
//
// Both .pt files are the same on all ranks, so that one rank of each disk writes them; what is a
// rank's own is gathered first. A load collects and checks everything before it changes anything.
#include "dgc/checkpoint.h"

#include <fmt/format.h>

#include "checkpoint/load.h"
#include "checkpoint/save.h"
#include "torch/saved_tensors.h"
#include "torch/sgd_impl.h"

namespace dgc {
namespace {

using namespace sgd;

/// What is each rank's own, of all ranks, for every rank to write the same file.
void add_private_parts(Sgd::Impl& optimizer, const torch::Tensor& given, Dictionary& all) {
  Dictionary mine;
  mine.insert("random", random_state());
  if (given.defined()) mine.insert(kGiven, snapshot(given));
  for (const auto& [name, buffer] : optimizer.buffers.all())
    mine.insert("buffer/" + name, snapshot(buffer));
  add_of_all_ranks(optimizer.group, mine, all);
}

/// model.pt and optimizer.pt.
std::pair<std::vector<char>, std::vector<char>> pickled_parts(Sgd::Impl& my,
                                                              const torch::Tensor& mine) {
  Dictionary rest;
  add_private_parts(my, mine, rest);
  Dictionary model;
  for (sgd::Parameter& parameter : my.parameters) {
    // A master may be older than what was written by hand.
    if (parameter.master.defined()) parameter.values();
    model.insert(parameter.name, snapshot(parameter.tensor));
    for (const std::string& alias : parameter.aliases)
      model.insert(alias, model.at(parameter.name));
    if (parameter.master.defined()) rest.insert("master/" + parameter.name, parameter.master);
  }
  for (const auto& [name, buffer] : my.buffers.all())
    model.insert(name, rest.at("rank/0/buffer/" + name));
  for (std::size_t t = 0; t < my.decay.size(); ++t) {
    if (my.decay[t].empty()) continue;
    rest.insert("decay/" + my.parameter(t).name,
                torch::from_blob(my.decay[t].data(), my.parameter(t).tensor.sizes()));
  }
  std::vector<double> rates;
  for (const auto& g : my.param_groups) rates.push_back(g.options().get_lr());
  rest.insert("lr", torch::tensor(rates, torch::kDouble));
  rest.insert("loss_scale", torch::tensor(my.pipeline->loss_scale, torch::kDouble));

  return std::pair(pickled(model), pickled(rest));
}

/// Everything that a load changes but u and v, found and checked.
struct Loaded {
  std::vector<std::pair<torch::Tensor, torch::Tensor>> assignments;  ///< ours, and its new values
  std::vector<std::vector<float>> decay;
  torch::Tensor rates;
  torch::Tensor loss_scale;
  torch::Tensor random;
  torch::Tensor given;
};

Loaded read_tensors(Sgd::Impl& my, const SavedTensors& model, const SavedTensors& rest,
                    int workers) {
  Loaded loaded;
  for (const sgd::Parameter& parameter : my.parameters) {
    loaded.assignments.emplace_back(parameter.tensor, model.at(parameter.name, parameter.tensor));
    if (parameter.master.defined()) {
      const std::string name = "master/" + parameter.name;
      loaded.assignments.emplace_back(parameter.master, rest.at(name, parameter.master));
    }
  }
  // With another number of workers, new ranks begin with what an old one had, but with random
  // numbers of their own.
  const int old_rank = my.group.rank() % workers;
  for (const auto& [name, buffer] : my.buffers.all()) {
    loaded.assignments.emplace_back(
        buffer, rest.at(fmt::format("rank/{}/buffer/{}", old_rank, name), buffer));
  }
  loaded.rates = rest.at(
      "lr", torch::empty({static_cast<std::int64_t>(my.param_groups.size())}, torch::kDouble));
  loaded.loss_scale = rest.at("loss_scale", torch::tensor(0.0, torch::kDouble));
  loaded.decay.resize(my.decay.size());
  for (std::size_t t = 0; t < my.decay.size(); ++t) {
    const sgd::Parameter& parameter = my.parameter(t);
    if (!rest.has("decay/" + parameter.name)) continue;
    const torch::Tensor& values =
        rest.at("decay/" + parameter.name, torch::empty(parameter.tensor.sizes(), torch::kFloat));
    loaded.decay[t].assign(values.data_ptr<float>(), values.data_ptr<float>() + values.numel());
  }
  if (my.group.size() == workers) {
    loaded.given = rest.get(fmt::format("rank/{}/{}", old_rank, kGiven));
  }
  const torch::Tensor& random = rest.at(fmt::format("rank/{}/random", old_rank), random_state());
  if (my.group.rank() < workers) loaded.random = random;
  return loaded;
}

/// Cannot fail.
void apply(Sgd::Impl& my, Loaded loaded) {
  for (auto& [ours, theirs] : loaded.assignments) ours.copy_(theirs);
  // Tensor and master belong together; else the master would be taken from the rounded values.
  for (sgd::Parameter& parameter : my.parameters) parameter.version = parameter.tensor._version();
  my.decay = std::move(loaded.decay);
  for (std::size_t g = 0; g < my.param_groups.size(); ++g) {
    my.param_groups[g].options().set_lr(loaded.rates[static_cast<std::int64_t>(g)].item<double>());
  }
  my.pipeline->loss_scale = loaded.loss_scale.item<double>();
  if (loaded.random.defined()) set_random_state(loaded.random);
  my.stats = {};
  my.pipeline->reset();
}

}  // namespace

CheckpointInfo save_checkpoint(const std::filesystem::path& folder, Sgd& optimizer,
                               const std::string& user, int keep, const torch::Tensor& mine) {
  Sgd::Impl& my = sgd::Internals::of(optimizer);
  my.require_idle("save");
  const torch::NoGradGuard no_grad;

  const auto [model_bytes, rest_bytes] =
      telling_others(my.group, [&] { return pickled_parts(my, mine); });
  CheckpointInfo info{
      .step = my.exchange->state().step(), .user = user, .workers = my.group.size()};
  info.path = checkpoint::save(my.group, folder,
                               {.step = info.step,
                                .user = user,
                                .shared = {{kModelFile, std::as_bytes(std::span(model_bytes))},
                                           {kOptimizerFile, std::as_bytes(std::span(rest_bytes))}},
                                .state = &my.exchange->state()},
                               keep);
  return info;
}

std::optional<CheckpointInfo> load_checkpoint(const std::filesystem::path& folder, Sgd& optimizer,
                                              std::optional<std::uint64_t> step) {
  Sgd::Impl& my = sgd::Internals::of(optimizer);
  my.require_idle("load");
  const torch::NoGradGuard no_grad;
  const auto found = checkpoint::open(my.group, folder, step);
  if (!found) return {};

  // Files were found whole: if they cannot be read now, that is this rank's trouble alone.
  const auto [model, rest] = telling_others(my.group, [&] {
    return std::pair(SavedTensors(*found, kModelFile), SavedTensors(*found, kOptimizerFile));
  });
  Loaded loaded = read_tensors(my, model, rest, found->workers());
  CheckpointInfo info{.step = found->step(),
                      .user = found->user(),
                      .workers = found->workers(),
                      .path = found->path(),
                      .mine = loaded.given};
  found->load_state(my.exchange->state());  // the last thing that can fail
  apply(my, std::move(loaded));
  return info;
}

}  // namespace dgc
