#include "train/stepper.h"

#include <limits>

#include "train/optimizer.h"
#include "train/ratio_control.h"
#include "train/run_costs.h"

namespace dgc::train {
namespace {

class SgdSteps : public Stepper {
 public:
  /// `controlled`: decisions on the ratio are kept in `folder`; the run has so many `steps`.
  SgdSteps(const StepperSetup& setup, const SgdOptions& options, bool controlled)
      : sgd_(setup.group, setup.model, options) {
    if (controlled) control_.emplace(sgd_, setup.folder, final_ratio(), setup.steps);
  }

  void set_lr(double lr) override {
    for (auto& group : sgd_.param_groups()) group.options().set_lr(lr);
  }
  void zero_grad() override { sgd_.zero_grad(); }
  void step(bool) override { sgd_.step(); }
  std::uint64_t steps() const override { return sgd_.steps(); }
  const StepStats& stats() const override { return sgd_.stats(); }
  SgdReport report() const override { return sgd_.report(); }
  const Costs& costs() const override { return sgd_.costs(); }
  double final_ratio() const override {
    return sgd_.options().schedule().ratio_at(std::numeric_limits<std::int64_t>::max());
  }
  std::uint64_t warmup_steps() const override {
    return static_cast<std::uint64_t>(sgd_.options().schedule().warmup_steps());
  }
  std::string after_step(double compute_seconds) override {
    return control_ ? control_->after_step(compute_seconds) : std::string();
  }
  void request_stop() noexcept override { sgd_.request_stop(); }
  bool stop_requested() const noexcept override { return sgd_.stop_requested(); }
  void abandon(const Error& cause) noexcept override { sgd_.abandon(cause); }
  void sync_buffers() override { sgd_.sync_buffers(); }
  void check_parameters() override { sgd_.check_parameters(); }
  void save(const std::filesystem::path& folder, const std::string& user, int keep,
            const torch::Tensor& mine) override {
    save_checkpoint(folder, sgd_, user, keep, mine);
  }
  std::optional<CheckpointInfo> load(const std::filesystem::path& folder) override {
    auto checkpoint = load_checkpoint(folder, sgd_);
    if (checkpoint && control_) control_->resume();
    return checkpoint;
  }
  void continue_at(std::uint64_t) override {}  // a checkpoint of dgc::Sgd counts steps

 private:
  Sgd sgd_;
  std::optional<RatioControl> control_;  // with --ratio auto
};

}  // namespace

StepperChoice make_stepper(const Settings& settings, const std::string& mode,
                           const StepperSetup& setup) {
  if (is_local(mode)) return {make_rounds_of_steps(settings, mode, setup), {}, false};
  if (settings.inner != "sgd") return {make_averaged_steps(settings, mode, setup), {}, false};
  OptimizerChoice choice = choose_optimizer(
      settings, mode, setup.model, {setup.group.size(), setup.steps, setup.steps_per_epoch});
  SgdOptions& options = choice.options;
  const bool chooses =
      (options.algorithm() == Algorithm::automatic || choice.controlled) && setup.group.size() > 1;
  if (chooses && setup.resumes) {
    options.exchange.costs = kept_costs(setup.group, setup.folder);
  }
  return {std::make_unique<SgdSteps>(setup, options, choice.controlled), std::move(choice.reason),
          chooses};
}

}  // namespace dgc::train
