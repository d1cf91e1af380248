// A mesh counts steps of the whole batch, a hub rounds of whoever is there: what both have is how
// many examples were seen, and from that follows where the mesh goes on.
#include "train/hub_export.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "dgc/checkpoint.h"
#include "dgc/engines.h"
#include "dgc/error.h"
#include "hub/audit.h"
#include "torch/sgd_impl.h"
#include "train/optimizer.h"
#include "train/recipe.h"
#include "train/resume_point.h"
#include "train/run_folder.h"
#include "train/task.h"

namespace dgc::train {
namespace {

/// The values of one tensor after the other, found by the tensors' names.
class Values {
 public:
  Values(const std::vector<TensorSpec>& specs, std::span<const float> values)
      : specs_(specs), values_(values) {}

  std::span<const float> of(const std::string& name) const {
    std::size_t at = 0;
    for (const TensorSpec& spec : specs_) {
      const auto size = static_cast<std::size_t>(spec.elements());
      if (spec.name == name) return values_.subspan(at, size);
      at += size;
    }
    throw Error(ErrorCode::state_mismatch, "export", name, "is not in the hub's run",
                "was its config.json changed?");
  }

 private:
  const std::vector<TensorSpec>& specs_;
  std::span<const float> values_;
};

void copy_to(std::span<const float> from, const torch::Tensor& to) {
  to.detach().copy_(torch::from_blob(const_cast<float*>(from.data()), to.sizes()));
}

void take_parameters(hub::SavedRun& run, torch::nn::Module& model) {
  const torch::NoGradGuard no_grad;
  const auto spans = run.replica.parameters();
  for (std::size_t t = 0; t < spans.size(); ++t) {
    torch::Tensor* const found = model.named_parameters().find(run.replica.model()[t].name);
    if (found == nullptr) {
      throw Error(ErrorCode::state_mismatch, "export", run.replica.model()[t].name,
                  "is no parameter of this model", "was the hub's config.json changed?");
    }
    copy_to(spans[t], *found);
  }
  const Values buffers(run.replica.buffer_specs(), run.replica.buffers());
  for (const auto& item : model.named_buffers()) {
    if (item.value().scalar_type() == torch::kFloat) copy_to(buffers.of(item.key()), item.value());
  }
}

/// What the optimizer has beside parameters: momentum that is the same everywhere, what the hub has
/// not sent, and the place in the schedule.
void take_state(const hub::SavedRun& run, std::uint64_t steps, Sgd& optimizer) {
  Sgd::Impl& my = sgd::Internals::of(optimizer);
  State& state = my.exchange->state();
  state.set_step(steps);
  for (std::size_t t = 0; t < state.tensors().size(); ++t) {
    const std::string& name = state.tensors()[t].name;
    if (!run.residual.empty()) {
      const auto residual = Values(run.replica.model(), run.residual).of(name);
      std::copy(residual.begin(), residual.end(), state.residual(t).begin());
    }
    if (!run.replica.momentum().empty()) {
      const auto momentum = Values(run.replica.model(), run.replica.momentum()).of(name);
      my.decay[t].assign(momentum.begin(), momentum.end());
    }
  }
}

}  // namespace

void export_hub_run(const std::filesystem::path& run_folder, const std::filesystem::path& out,
                    const nlohmann::json& own, Console& console) {
  const auto config = read_json(run_folder / kConfigFile);
  if (!config) {
    throw Error(ErrorCode::io, "export", (run_folder / kConfigFile).string(),
                "there is no such run", "give the --out of `dgc serve`");
  }
  nlohmann::json given = nlohmann::json::parse(config->dump());
  given.update(own);
  const Settings settings = resolve(given);
  const std::string mode = settings.mode;
  hub::SavedRun run = hub::saved_run(run_folder / "hub");
  if (run.last_round > run.replica.round()) {
    console.say(fmt::format(
        "rounds {} to {} are newer than the last snapshot and are left out; a hub that is stopped "
        "with Ctrl-C or SIGTERM saves all of them",
        run.replica.round() + 1, run.last_round));
  }
  begin_run(out);
  const auto groups = make_local_groups(1);
  const auto task = make_task(settings, {});
  take_parameters(run, task->model());
  const double epoch = run.positions > 0
                           ? static_cast<double>(run.examples) / static_cast<double>(run.positions)
                           : 0.0;
  const double per_epoch = std::ceil(static_cast<double>(task->positions()) /
                                     static_cast<double>(task->positions_of_step()));
  ResumePoint point{.epoch = static_cast<std::uint64_t>(epoch),
                    .positions = task->positions(),
                    .done = static_cast<std::uint64_t>(std::llround(epoch * per_epoch))};
  point.position = std::min(task->positions() - 1,
                            static_cast<std::int64_t>((epoch - std::floor(epoch)) *
                                                      static_cast<double>(task->positions())));
  point.steps = settings.steps > 0
                    ? static_cast<std::uint64_t>(settings.steps)
                    : static_cast<std::uint64_t>(std::ceil(settings.epochs * per_epoch - 1e-6));
  // Examples that were done again count twice in a hub's commits.
  point.done = std::min(point.done, point.steps);
  // Of a run that is over nothing else would be evaluated.
  if (run.evaluation) {
    point.validation = Scores{.loss = run.evaluation->loss, .metrics = run.evaluation->metrics};
  }
  const auto folder = out / mode / kCheckpoints;
  if (is_local(mode)) {
    const auto inner = make_inner(settings, task->model());
    LocalSteps local(*groups.front(), task->model(), *inner, local_options(settings, mode));
    save_checkpoint(folder, local, point.text());
  } else {
    const int workers = static_cast<int>(std::max<std::int64_t>(1, settings.workers));
    const OptimizerChoice choice =
        choose_optimizer(settings, mode, task->model(),
                         {.workers = workers,
                          .steps = point.steps,
                          .steps_per_epoch = static_cast<std::int64_t>(per_epoch)});
    Sgd optimizer(*groups.front(), task->model(), choice.options);
    take_state(run, point.done, optimizer);
    save_checkpoint(folder, optimizer, point.text());
  }
  nlohmann::ordered_json kept = *config;
  for (const auto& [name, value] : own.items()) kept[name] = value;
  write_json(out / kConfigFile, kept);
  console.say(fmt::format("round {} of the hub is step {} of {} in {}: dgc train --resume {}",
                          run.replica.round(), point.done, point.steps, out.string(),
                          out.string()));
}

}  // namespace dgc::train
