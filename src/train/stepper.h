// What the trainer does with gradients: the same for every mode.
//
//   SgdSteps        dense, dense-fp16, dgc, naive with --inner sgd: dgc::Sgd
//   AveragedSteps   dense, dense-fp16 with another optimizer: it steps on the averaged gradient
//   RoundsOfSteps   diloco, dgc-local: dgc::LocalSteps around any optimizer
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "dgc/checkpoint.h"
#include "dgc/group.h"
#include "dgc/sgd.h"
#include "train/settings.h"

namespace dgc::train {

class Stepper {
 public:
  virtual ~Stepper() = default;

  virtual void set_lr(double lr) = 0;
  virtual void zero_grad() = 0;
  /// After backward; `has_gradient` is false where this worker had no examples. May be a collective
  /// call.
  virtual void step(bool has_gradient) = 0;
  /// Steps of this run so far, also before it was continued.
  virtual std::uint64_t steps() const = 0;

  /// Whether the last step() or come_together() exchanged anything.
  virtual bool exchanged() const { return true; }
  /// Whether all workers have the same parameters: then they can be evaluated and saved.
  virtual bool together() const { return true; }
  /// Makes it so, by an exchange. A collective call.
  virtual void come_together() {}

  /// Of the last exchange.
  virtual const StepStats& stats() const = 0;
  virtual SgdReport report() const = 0;
  /// What `auto` chooses by.
  virtual const Costs& costs() const = 0;
  /// Share of the entries that is sent once there is no warm-up any more.
  virtual double final_ratio() const = 0;
  /// How many steps have one.
  virtual std::uint64_t warmup_steps() const { return 0; }
  /// After step(), which followed so many seconds of computing. What to tell people; empty where
  /// nothing changes. May be a collective call.
  virtual std::string after_step(double /*compute_seconds*/) { return {}; }

  virtual void request_stop() noexcept = 0;
  /// True on all ranks after the same exchange.
  virtual bool stop_requested() const noexcept = 0;
  virtual void abandon(const Error& cause) noexcept = 0;

  // Collective calls, where together() is true.
  virtual void sync_buffers() = 0;
  virtual void check_parameters() = 0;
  virtual void save(const std::filesystem::path& folder, const std::string& user, int keep,
                    const torch::Tensor& mine) = 0;
  virtual std::optional<CheckpointInfo> load(const std::filesystem::path& folder) = 0;
  /// After a load: how many steps the run has had.
  virtual void continue_at(std::uint64_t steps) = 0;
};

struct StepperChoice {
  std::unique_ptr<Stepper> stepper;
  std::string reason;    ///< of what the settings left open; for the run's first lines
  bool chooses = false;  ///< the algorithm is auto, by costs()
};

/// What a choice of stepper depends on beside the settings.
struct StepperSetup {
  Group& group;
  torch::nn::Module& model;
  std::uint64_t steps = 0;
  std::int64_t steps_per_epoch = 0;
  /// Of the mode: decisions are kept there. Where a run resumes, it has those of the earlier part.
  std::filesystem::path folder = {};
  bool resumes = false;
};
/// `mode` is one of modes_of(). A collective call.
StepperChoice make_stepper(const Settings& settings, const std::string& mode,
                           const StepperSetup& setup);

// The parts of make_stepper.
std::unique_ptr<Stepper> make_averaged_steps(const Settings& settings, const std::string& mode,
                                             const StepperSetup& setup);
std::unique_ptr<Stepper> make_rounds_of_steps(const Settings& settings, const std::string& mode,
                                              const StepperSetup& setup);

}  // namespace dgc::train
