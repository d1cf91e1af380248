// Local steps of any optimizer, and rounds that exchange what changed. Between two rounds nothing
// leaves a worker.
#include "train/optimizer.h"
#include "train/stepper.h"

namespace dgc::train {
namespace {

class RoundsOfSteps : public Stepper {
 public:
  RoundsOfSteps(const Settings& settings, const std::string& mode, const StepperSetup& setup)
      : clip_norm_(settings.clipping ? settings.clip_norm : 0.0),
        parameters_(setup.model.parameters()),
        inner_(make_inner(settings, setup.model)),
        local_(setup.group, setup.model, *inner_, local_options(settings, mode)) {}

  void set_lr(double lr) override {
    for (auto& group : inner_->param_groups()) group.options().set_lr(lr);
  }
  void zero_grad() override {
    for (torch::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
  }
  void step(bool has_gradient) override {
    // Without examples nothing changes; the step counts, so that all have the same rounds.
    if (has_gradient && clip_norm_ > 0.0) {
      torch::nn::utils::clip_grad_norm_(parameters_, clip_norm_);
    }
    exchanged_ = local_.step();
    ++steps_;
  }
  std::uint64_t steps() const override { return steps_; }
  bool exchanged() const override { return exchanged_; }
  bool together() const override { return local_.local_step() == 0; }
  void come_together() override {
    local_.synchronize();
    exchanged_ = true;
  }
  const StepStats& stats() const override { return local_.stats(); }
  SgdReport report() const override { return local_.report(); }
  const Costs& costs() const override { return local_.costs(); }
  double final_ratio() const override { return local_.options().schedule().ratio_at(0); }
  void request_stop() noexcept override { local_.request_stop(); }
  bool stop_requested() const noexcept override { return local_.stop_requested(); }
  void abandon(const Error& cause) noexcept override { local_.abandon(cause); }
  void sync_buffers() override { local_.sync_buffers(); }
  void check_parameters() override { local_.check_parameters(); }
  void save(const std::filesystem::path& folder, const std::string& user, int keep,
            const torch::Tensor& mine) override {
    save_checkpoint(folder, local_, user, keep, mine);
  }
  std::optional<CheckpointInfo> load(const std::filesystem::path& folder) override {
    return load_checkpoint(folder, local_);
  }
  void continue_at(std::uint64_t steps) override { steps_ = steps; }

 private:
  double clip_norm_;
  std::vector<torch::Tensor> parameters_;
  std::unique_ptr<torch::optim::Optimizer> inner_;
  LocalSteps local_;
  std::uint64_t steps_ = 0;
  bool exchanged_ = false;
};

}  // namespace

std::unique_ptr<Stepper> make_rounds_of_steps(const Settings& settings, const std::string& mode,
                                              const StepperSetup& setup) {
  return std::make_unique<RoundsOfSteps>(settings, mode, setup);
}

}  // namespace dgc::train
