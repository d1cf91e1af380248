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

#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <torch/serialize.h>

#include <cstring>

#include "checkpoint/load.h"
#include "checkpoint/save.h"
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

/// A contiguous copy: a view would be pickled with all of its storage.
torch::Tensor snapshot(const torch::Tensor& tensor) {
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
  if (given.defined()) mine.insert(kGiven, snapshot(given));
  for (const auto& [name, buffer] : optimizer.buffers)
    mine.insert("buffer/" + name, snapshot(buffer));
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
    model.insert(parameter.name, snapshot(parameter.tensor));
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

/// The tensors of a shared file, looked up by name.
class SavedTensors {
 public:
  SavedTensors(const checkpoint::Checkpoint& checkpoint, const char* file)
      : subject_((checkpoint.path() / file).string()),
        tensors_(unpickled(checkpoint.shared(file), subject_)) {}

  bool has(const std::string& name) const { return tensors_.contains(name); }
  torch::Tensor get(const std::string& name) const {
    return has(name) ? tensors_.find(name)->value() : torch::Tensor();
  }

  /// Throws Error unless it is there, with this shape and type.
  const torch::Tensor& at(const std::string& name, const torch::Tensor& like) const {
    if (!has(name)) {
      throw Error(ErrorCode::state_mismatch, "load", subject_, fmt::format("has no '{}'", name),
                  "it was written by another model; nothing was loaded");
    }
    const torch::Tensor& found = tensors_.find(name)->value();
    if (found.sizes() != like.sizes() || found.scalar_type() != like.scalar_type()) {
      const auto text = [](const torch::Tensor& tensor) {
        return fmt::format("{} {}", TensorSpec{"", tensor.sizes().vec()}.shape_text(),
                           torch::toString(tensor.scalar_type()));
      };
      throw Error(ErrorCode::shape_mismatch, "load", subject_,
                  fmt::format("'{}' is {} there and {} here", name, text(found), text(like)),
                  "it was written by another model; nothing was loaded");
    }
    return found;
  }

 private:
  std::string subject_;
  Dictionary tensors_;
};

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
  for (const auto& [name, buffer] : my.buffers) {
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
                                .shared = {{kModel, std::as_bytes(std::span(model_bytes))},
                                           {kOptimizer, std::as_bytes(std::span(rest_bytes))}},
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
    return std::pair(SavedTensors(*found, kModel), SavedTensors(*found, kOptimizer));
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
