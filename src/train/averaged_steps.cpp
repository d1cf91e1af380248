// Any optimizer on the gradient that all workers average densely in every step: what local steps
// are compared with. All workers make the same update of the same state, so that a checkpoint has
// the optimizer once.
#include <fmt/format.h>

#include <chrono>

#include "checkpoint/load.h"
#include "checkpoint/save.h"
#include "dgc/collectives.h"
#include "engine/ended.h"
#include "torch/buffers.h"
#include "torch/describe.h"
#include "torch/inner_state.h"
#include "torch/saved_tensors.h"
#include "train/optimizer.h"
#include "train/stepper.h"

namespace dgc::train {
namespace {

constexpr const char* kOwner = "train";
constexpr const char* kInner = "inner";

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

class AveragedSteps : public Stepper {
 public:
  AveragedSteps(const Settings& settings, const std::string& mode, const StepperSetup& setup)
      : group_(setup.group),
        clip_norm_(settings.clipping ? settings.clip_norm : 0.0),
        inner_(make_inner(settings, setup.model)),
        buffers_(setup.group, kOwner) {
    const SgdGroup all{setup.model.named_parameters(), SgdGroupOptions(0.0), {}};
    sgd::check_parameters({&all, 1}, kOwner);
    parameters_ = sgd::collect_parameters({&all, 1});
    std::vector<TensorSpec> model;
    for (std::size_t p = 0; p < parameters_.size(); ++p) {
      sgd::broadcast_tensor(group_, parameters_[p].tensor);
      if (parameters_[p].frozen) continue;
      trained_.push_back(p);
      model.push_back(parameters_[p].spec());
      sums_.emplace_back(model.back().elements());
      elements_ += model.back().elements();
    }
    compress_.momentum = 0.0f;
    compress_.schedule = Schedule(1.0);
    exchange_ = std::make_unique<Exchange>(
        group_, model, compress_,
        ExchangeOptions{.algorithm = Algorithm::dense,
                        .dense_transport = mode == "dense" ? ValueType::fp32 : ValueType::fp16});
    buffers_.add(setup.model.named_buffers(), parameters_);
  }

  void set_lr(double lr) override {
    for (auto& group : inner_->param_groups()) group.options().set_lr(lr);
  }
  void zero_grad() override {
    for (const std::size_t p : trained_) parameters_[p].tensor.mutable_grad().reset();
  }
  void step(bool) override {
    std::vector<torch::Tensor> kept;  // until they are sent
    std::vector<Gradient> gradients;
    for (std::size_t t = 0; t < trained_.size(); ++t) {
      const torch::Tensor& gradient = tensor(t).grad();
      if (!gradient.defined()) continue;
      kept.push_back(sgd::as_contiguous_float(gradient));
      gradients.push_back(
          {t, {kept.back().data_ptr<float>(), static_cast<std::size_t>(kept.back().numel())}});
    }
    const std::uint64_t step = exchange_->state().step();
    exchange_->submit(gradients);
    const Collected collected = exchange_->finish();
    stats_ = {.step = step, .ratio = 1.0, .waiting = collected.seconds.waiting};
    const Clock::time_point start = Clock::now();
    try {
      update(collected);
    } catch (const std::exception& error) {
      exchange_->abandon(as_error(error));
      throw;
    }
    stats_.apply = seconds_since(start);
    stop_ |= collected.stop;
    sgd::describe_step(collected, *exchange_, elements_, group_.size(), stats_);
    exchange_->commit(collected, values());
  }
  std::uint64_t steps() const override { return exchange_->state().step(); }
  const StepStats& stats() const override { return stats_; }
  SgdReport report() const override {
    SgdReport report = sgd::describe_tensors(parameters_, {}, *exchange_, compress_);
    report.overlap = "off: the optimizer needs the whole gradient";
    report.algorithm = name_of(Algorithm::dense);
    return report;
  }
  const Costs& costs() const override { return exchange_->costs(); }
  double final_ratio() const override { return 1.0; }
  void request_stop() noexcept override { exchange_->request_stop(); }
  bool stop_requested() const noexcept override { return stop_; }
  void abandon(const Error& cause) noexcept override { exchange_->abandon(cause); }
  void sync_buffers() override { buffers_.synchronize(); }
  void check_parameters() override { exchange_->check_parameters(values()); }
  void save(const std::filesystem::path& folder, const std::string& user, int keep,
            const torch::Tensor& mine) override;
  std::optional<CheckpointInfo> load(const std::filesystem::path& folder) override;
  void continue_at(std::uint64_t) override {}  // the exchange counts steps

 private:
  torch::Tensor& tensor(std::size_t t) { return parameters_[trained_[t]].tensor; }

  std::vector<std::span<float>> values() {
    std::vector<std::span<float>> spans;
    for (const std::size_t p : trained_) spans.push_back(parameters_[p].values());
    return spans;
  }

  void update(const Collected& collected) {
    std::vector<std::span<float>> targets;
    for (std::vector<float>& sum : sums_) {
      std::fill(sum.begin(), sum.end(), 0.0f);
      targets.emplace_back(sum);
    }
    exchange_->apply(collected, targets, 1.0f);
    std::vector<torch::Tensor> all;
    for (std::size_t t = 0; t < trained_.size(); ++t) {
      if (!collected.present[t]) continue;
      tensor(t).mutable_grad() = torch::from_blob(sums_[t].data(), tensor(t).sizes());
      all.push_back(tensor(t));
    }
    if (clip_norm_ > 0.0) torch::nn::utils::clip_grad_norm_(all, clip_norm_);
    inner_->step();
    for (const std::size_t p : trained_) parameters_[p].publish();
  }

  std::pair<std::vector<char>, std::vector<char>> pickled_parts(const torch::Tensor& given);

  Group& group_;
  double clip_norm_;
  std::unique_ptr<torch::optim::Optimizer> inner_;
  std::vector<sgd::Parameter> parameters_;
  std::vector<std::size_t> trained_;  // tensor t of the exchange is parameters_[trained_[t]]
  std::vector<std::vector<float>> sums_;
  std::uint64_t elements_ = 0;
  sgd::ModelBuffers buffers_;
  CompressOptions compress_;
  std::unique_ptr<Exchange> exchange_;
  StepStats stats_;
  bool stop_ = false;
};

/// model.pt and optimizer.pt.
std::pair<std::vector<char>, std::vector<char>> AveragedSteps::pickled_parts(
    const torch::Tensor& given) {
  sgd::Dictionary mine;
  mine.insert("random", sgd::random_state());
  // The same on all ranks, but for the addresses in it.
  if (group_.rank() == 0) mine.insert(kInner, sgd::inner_state(*inner_));
  if (given.defined()) mine.insert(sgd::kGiven, sgd::snapshot(given));
  for (const auto& [name, buffer] : buffers_.all()) {
    mine.insert("buffer/" + name, sgd::snapshot(buffer));
  }
  sgd::Dictionary rest;
  sgd::add_of_all_ranks(group_, mine, rest);
  sgd::Dictionary model;
  for (const sgd::Parameter& parameter : parameters_) {
    model.insert(parameter.name, sgd::snapshot(parameter.tensor));
    for (const std::string& alias : parameter.aliases) {
      model.insert(alias, model.at(parameter.name));
    }
  }
  for (const auto& [name, buffer] : buffers_.all()) {
    model.insert(name, rest.at("rank/0/buffer/" + name));
  }
  return {sgd::pickled(model), sgd::pickled(rest)};
}

void AveragedSteps::save(const std::filesystem::path& folder, const std::string& user, int keep,
                         const torch::Tensor& mine) {
  const torch::NoGradGuard no_grad;
  const auto [model, rest] = sgd::telling_others(group_, [&] { return pickled_parts(mine); });
  checkpoint::save(group_, folder,
                   {.step = steps(),
                    .user = user,
                    .shared = {{sgd::kModelFile, std::as_bytes(std::span(model))},
                               {sgd::kOptimizerFile, std::as_bytes(std::span(rest))}},
                    .state = &exchange_->state()},
                   keep);
}

std::optional<CheckpointInfo> AveragedSteps::load(const std::filesystem::path& folder) {
  const torch::NoGradGuard no_grad;
  const auto found = checkpoint::open(group_, folder);
  if (!found) return {};
  const auto [model, rest] = sgd::telling_others(group_, [&] {
    return std::pair(sgd::SavedTensors(*found, sgd::kModelFile),
                     sgd::SavedTensors(*found, sgd::kOptimizerFile));
  });
  std::vector<std::pair<torch::Tensor, torch::Tensor>> assignments;
  for (const sgd::Parameter& parameter : parameters_) {
    assignments.emplace_back(parameter.tensor, model.at(parameter.name, parameter.tensor));
  }
  const int old_rank = group_.rank() % found->workers();
  for (const auto& [name, buffer] : buffers_.all()) {
    assignments.emplace_back(buffer,
                             rest.at(fmt::format("rank/{}/buffer/{}", old_rank, name), buffer));
  }
  const torch::Tensor inner = rest.get(std::string("rank/0/") + kInner);
  if (!inner.defined()) {
    throw Error(ErrorCode::state_mismatch, "load", rest.subject(), "has no state of an optimizer",
                "it was written by another mode");
  }
  const torch::Tensor random =
      rest.at(fmt::format("rank/{}/random", old_rank), sgd::random_state());
  sgd::InnerChange change(*inner_, inner, rest.subject());
  found->load_state(exchange_->state());  // the last thing that can fail
  change.keep();
  for (auto& [ours, theirs] : assignments) ours.copy_(theirs);
  for (sgd::Parameter& parameter : parameters_) parameter.version = parameter.tensor._version();
  if (group_.rank() < found->workers()) sgd::set_random_state(random);
  CheckpointInfo info{.step = found->step(),
                      .user = found->user(),
                      .workers = found->workers(),
                      .path = found->path()};
  if (group_.size() == found->workers()) {
    info.mine = rest.get(fmt::format("rank/{}/{}", old_rank, sgd::kGiven));
  }
  return info;
}

}  // namespace

std::unique_ptr<Stepper> make_averaged_steps(const Settings& settings, const std::string& mode,
                                             const StepperSetup& setup) {
  return std::make_unique<AveragedSteps>(settings, mode, setup);
}

}  // namespace dgc::train
