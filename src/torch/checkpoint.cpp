// model.pt has what somebody needs who only wants the model (a dictionary that Python's torch.load
// reads), optimizer.pt the rest that is not u and v: momentum of weight decay, fp32 masters,
// learning rates, and random state, buffers and what else each rank has of its own. u and v are in
// the files of the ranks.
#include "dgc/checkpoint.h"

#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <torch/serialize.h>

#include <cstring>

#include "checkpoint/folder.h"
#include "dgc/collectives.h"
#include "torch/sgd_impl.h"

namespace dgc {
namespace {

using Dictionary = c10::Dict<std::string, torch::Tensor>;

constexpr const char* kModel = "model.pt";
constexpr const char* kOptimizer = "optimizer.pt";
constexpr const char* kGiven = "given";  // by the caller, of this rank

std::vector<char> pickled(const Dictionary& dictionary) { return torch::pickle_save(dictionary); }

Dictionary unpickled(std::span<const std::byte> bytes, const std::string& subject) {
  try {
    const auto* const data = reinterpret_cast<const char*>(bytes.data());
    const auto value = torch::pickle_load(std::vector<char>(data, data + bytes.size()));
    Dictionary dictionary;
    for (const auto& item : value.toGenericDict()) {
      dictionary.insert(item.key().toStringRef(), item.value().toTensor());
    }
    return dictionary;
  } catch (const c10::Error& error) {
    throw Error(ErrorCode::bad_state, "load", subject,
                fmt::format("is not a dictionary of tensors: {}", error.what_without_backtrace()),
                "use another checkpoint; nothing was loaded");
  }
}

torch::Tensor saved(const torch::Tensor& tensor) {
  return tensor.detach().clone(torch::MemoryFormat::Contiguous);
}

torch::Tensor random_state() {
  auto generator = at::detail::getDefaultCPUGenerator();
  const std::scoped_lock lock(generator.mutex());
  return generator.get_state();
}

void set_random_state(const torch::Tensor& state) {
  auto generator = at::detail::getDefaultCPUGenerator();
  const std::scoped_lock lock(generator.mutex());
  generator.set_state(state);
}

/// What is each rank's own, of all ranks, for every rank to write the same file.
void add_private_parts(Sgd::Impl& optimizer, const torch::Tensor& given, Dictionary& all) {
  Dictionary mine;
  mine.insert("random", random_state());
  if (given.defined()) mine.insert(kGiven, saved(given));
  for (const auto& [name, buffer] : optimizer.buffers) mine.insert("buffer/" + name, saved(buffer));
  const std::vector<char> bytes = pickled(mine);
  const auto gathered = all_gather(optimizer.group, std::as_bytes(std::span(bytes)));
  for (std::size_t r = 0; r < gathered.size(); ++r) {
    for (const auto& item : unpickled(gathered[r], fmt::format("rank {}", r))) {
      all.insert(fmt::format("rank/{}/{}", r, item.key()), item.value());
    }
  }
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
    model.insert(parameter.name, saved(parameter.tensor));
    for (const std::string& alias : parameter.aliases)
      model.insert(alias, model.at(parameter.name));
    if (parameter.master.defined()) rest.insert("master/" + parameter.name, parameter.master);
  }
  for (const auto& [name, buffer] : my.buffers)
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

/// Parts of an opened checkpoint, looked up by name.
class Parts {
 public:
  Parts(const checkpoint::Checkpoint& checkpoint, const char* file)
      : subject_((checkpoint.path() / file).string()),
        parts_(unpickled(checkpoint.shared(file), subject_)) {}

  bool has(const std::string& name) const { return parts_.contains(name); }
  torch::Tensor get(const std::string& name) const {
    return has(name) ? parts_.find(name)->value() : torch::Tensor();
  }

  /// Throws Error unless it is there, with this shape and type.
  const torch::Tensor& at(const std::string& name, const torch::Tensor& like) const {
    if (!has(name)) {
      throw Error(ErrorCode::state_mismatch, "load", subject_, fmt::format("has no '{}'", name),
                  "it was written by another model; nothing was loaded");
    }
    const torch::Tensor& part = parts_.find(name)->value();
    if (part.sizes() != like.sizes() || part.scalar_type() != like.scalar_type()) {
      const auto text = [](const torch::Tensor& tensor) {
        return fmt::format("{} {}", TensorSpec{"", tensor.sizes().vec()}.shape_text(),
                           torch::toString(tensor.scalar_type()));
      };
      throw Error(ErrorCode::shape_mismatch, "load", subject_,
                  fmt::format("'{}' is {} there and {} here", name, text(part), text(like)),
                  "it was written by another model; nothing was loaded");
    }
    return part;
  }

 private:
  std::string subject_;
  Dictionary parts_;
};

/// Tensors of ours and what they become, to be copied when everything is known to be there.
using Assignments = std::vector<std::pair<torch::Tensor, torch::Tensor>>;

/// What goes wrong with this rank alone is told to the others, who would wait for it.
template <typename Work>
auto telling_others(Group& group, const Work& work) {
  try {
    return work();
  } catch (const std::exception& error) {
    group.fail(as_error(error));
    throw;
  }
}

}  // namespace

CheckpointInfo save_checkpoint(const std::filesystem::path& folder, Sgd& optimizer,
                               const std::string& user, int keep, const torch::Tensor& mine) {
  Sgd::Impl& my = optimizer.impl();
  my.require_idle("save");
  const torch::NoGradGuard no_grad;

  const auto [model_bytes, rest_bytes] =
      telling_others(my.group, [&] { return pickled_parts(my, mine); });
  CheckpointInfo info{.step = my.state->step(), .user = user, .workers = my.group.size()};
  info.path = checkpoint::save(my.group, folder,
                               {.step = info.step,
                                .user = user,
                                .shared = {{kModel, std::as_bytes(std::span(model_bytes))},
                                           {kOptimizer, std::as_bytes(std::span(rest_bytes))}},
                                .state = &*my.state},
                               keep);
  return info;
}

std::optional<CheckpointInfo> load_checkpoint(const std::filesystem::path& folder, Sgd& optimizer,
                                              std::optional<std::uint64_t> step) {
  Sgd::Impl& my = optimizer.impl();
  my.require_idle("load");
  const torch::NoGradGuard no_grad;
  const auto found = checkpoint::open(my.group, folder, step);
  if (!found) return {};

  // Files were found whole: if they cannot be read now, that is this rank's trouble alone.
  const auto [model, rest] = telling_others(
      my.group, [&] { return std::pair(Parts(*found, kModel), Parts(*found, kOptimizer)); });
  Assignments assignments;
  for (const sgd::Parameter& parameter : my.parameters) {
    assignments.emplace_back(parameter.tensor, model.at(parameter.name, parameter.tensor));
    if (parameter.master.defined()) {
      const std::string name = "master/" + parameter.name;
      assignments.emplace_back(parameter.master, rest.at(name, parameter.master));
    }
  }
  // With other numbers of workers, new ranks begin with what an old one had, but with random
  // numbers of their own.
  const int old_rank = my.group.rank() % found->workers();
  for (const auto& [name, buffer] : my.buffers) {
    assignments.emplace_back(buffer,
                             rest.at(fmt::format("rank/{}/buffer/{}", old_rank, name), buffer));
  }
  const torch::Tensor rates = rest.at(
      "lr", torch::empty({static_cast<std::int64_t>(my.param_groups.size())}, torch::kDouble));
  const torch::Tensor scale = rest.at("loss_scale", torch::tensor(0.0, torch::kDouble));
  std::vector<std::vector<float>> decay(my.decay.size());
  for (std::size_t t = 0; t < decay.size(); ++t) {
    const sgd::Parameter& parameter = my.parameter(t);
    if (!rest.has("decay/" + parameter.name)) continue;
    const torch::Tensor& values =
        rest.at("decay/" + parameter.name, torch::empty(parameter.tensor.sizes(), torch::kFloat));
    decay[t].assign(values.data_ptr<float>(), values.data_ptr<float>() + values.numel());
  }
  const bool as_many = my.group.size() == found->workers();
  const torch::Tensor given =
      as_many ? rest.get(fmt::format("rank/{}/{}", old_rank, kGiven)) : torch::Tensor();
  const torch::Tensor random = rest.at(fmt::format("rank/{}/random", old_rank), random_state());
  found->load_state(*my.state);  // the last thing that can fail

  for (auto& [ours, theirs] : assignments) ours.copy_(theirs);
  // Tensor and master belong together; else the master would be taken from the rounded values.
  for (sgd::Parameter& parameter : my.parameters) parameter.version = parameter.tensor._version();
  my.decay = std::move(decay);
  for (std::size_t g = 0; g < my.param_groups.size(); ++g) {
    my.param_groups[g].options().set_lr(rates[static_cast<std::int64_t>(g)].item<double>());
  }
  my.pipeline->loss_scale = scale.item<double>();
  if (my.group.rank() < found->workers()) set_random_state(random);
  my.stats = {};
  my.pipeline->reset();
  return CheckpointInfo{.step = found->step(),
                        .user = found->user(),
                        .workers = found->workers(),
                        .path = found->path(),
                        .mine = given};
}

}  // namespace dgc
