// The messages of table 3 of the paper, measured rather than computed: the gradients of real steps
// go through a compressor for each format, which keeps its own residuals.
#include "train/measure_sizes.h"

#include <nlohmann/json.hpp>
#include <vector>

#include "dgc/compressor.h"
#include "train/local_defaults.h"
#include "train/optimizer.h"
#include "train/recipe.h"
#include "train/task.h"

namespace dgc::train {
namespace {

constexpr double kPaperRatio = 0.001;

/// One way to write the messages, with what it has not yet sent.
class Format {
 public:
  Format(const std::vector<TensorSpec>& model, const Settings& settings, ValueType values,
         ValueType dense_values, IndexCoding indices)
      : state_(model, 0, 1, settings.momentum > 0.0),
        compressor_(state_, {.schedule = Schedule(kPaperRatio),
                             .momentum = static_cast<float>(settings.momentum),
                             .nesterov = settings.nesterov,
                             .clip_norm = settings.clip_norm,
                             .values = values,
                             .dense_values = dense_values,
                             .indices = indices}) {}

  /// As dgc::LocalSteps has it.
  explicit Format(const std::vector<TensorSpec>& model)
      : state_(model, 0, 1, false),
        compressor_(state_, {.schedule = Schedule(kLocalRatio),
                             .momentum = 0.0f,
                             .residual_decay = kLocalResidualDecay,
                             .values = kLocalValues,
                             .dense_values = kLocalValues}) {}

  std::span<const std::byte> step(std::span<const Gradient> gradients) {
    message_.resize(compressor_.bound());
    message_.resize(compressor_.compress(gradients, message_));
    compressor_.commit();
    return message_;
  }
  std::uint64_t bytes() const { return message_.size(); }
  std::uint64_t entries() const {
    std::uint64_t entries = 0;
    for (std::size_t i = 0; i < state_.tensors().size(); ++i) {
      if (!state_.tensors()[i].dense) entries += compressor_.stats()[i].sent;
    }
    return entries;
  }

 private:
  State state_;
  Compressor compressor_;
  std::vector<std::byte> message_;
};

Settings settings_of(const models::Model& model, int steps) {
  nlohmann::json given = synthetic_settings(model);
  given.update(nlohmann::json::parse(model.measured));
  // Words, for the language model: rows of `bptt`, and the one that is to be said next.
  given["examples"] = given["batch"].get<int>() * given.value("bptt", 1) * (steps + 1);
  Settings settings = resolve(given);
  settings.dropout = 0.0;  // the sizes do not depend on it, and two runs give the same
  return settings;
}

}  // namespace

ModelSizes measure_sizes(const models::Model& model, int steps,
                         const std::function<void()>& progress) {
  const Settings settings = settings_of(model, steps);
  const std::unique_ptr<Task> task = make_task(settings, {});
  task->model().train();

  ModelSizes sizes;
  std::vector<TensorSpec> specs;
  std::vector<torch::Tensor> parameters;
  std::vector<std::span<float>> targets;
  for (const auto& [name, tensor] : distinct_parameters(task->model())) {
    specs.push_back(TensorSpec::of(name, tensor.sizes().vec()));
    parameters.push_back(tensor);
    targets.emplace_back(tensor.data_ptr<float>(), specs.back().elements());
    sizes.parameters += specs.back().elements();
    if (specs.back().dense) sizes.dense_parameters += specs.back().elements();
  }
  sizes.dense_bytes = 4 * sizes.parameters;

  using enum ValueType;
  Format paper(specs, settings, fp32, fp32, IndexCoding::runs);
  Format rice(specs, settings, fp16, fp32, IndexCoding::rice);
  Format quantised(specs, settings, fp16, int8, IndexCoding::rice);
  Format local(specs);
  Format best(specs, settings, sign, sign, IndexCoding::automatic);
  const std::int64_t batch = task->positions_of_step();
  for (int step = 0; step < steps; ++step) {
    task->model().zero_grad();
    task->loss(task->batch({.epoch = 0, .first = step * batch, .count = batch})).backward();
    std::vector<Gradient> gradients;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const torch::Tensor& gradient = parameters[i].grad();
      if (!gradient.defined()) continue;
      gradients.push_back({i, {gradient.data_ptr<float>(), specs[i].elements()}});
    }
    decode_add(CheckedMessage(paper.step(gradients)), targets, static_cast<float>(-settings.lr));
    rice.step(gradients);
    quantised.step(gradients);
    best.step(gradients);
    local.step(gradients);
    progress();
  }
  sizes.entries = paper.entries();
  sizes.paper_bytes = paper.bytes();
  sizes.rice_fp16_bytes = rice.bytes();
  sizes.quantised_bytes = quantised.bytes();
  sizes.best_bytes = best.bytes();
  sizes.local_bytes = local.bytes();
  return sizes;
}

}  // namespace dgc::train
