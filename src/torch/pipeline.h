// The way of a step's gradients from backward to the exchange: picked up as they come, bucket after
// bucket.
#pragma once

#include <torch/types.h>

#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "dgc/exchange.h"
#include "torch/hooks.h"

namespace dgc::sgd {

struct PipelineOptions {
  /// Exchange buckets as they fill. Without it gradients are only measured until finish().
  bool overlap = true;
  bool measure = false;  ///< norms are wanted: clipping, or skipping what is not finite
  int accumulation_steps = 1;
};

/// One rank's pipeline, over the tensors and buckets that an Exchange was made of. Used by the
/// thread that calls backward.
class Pipeline {
 public:
  Pipeline(Exchange& exchange, std::vector<torch::Tensor> tensors, std::vector<std::string> names,
           Buckets buckets, const PipelineOptions& options);
  /// A step that was begun and not finished is announced as failed.
  ~Pipeline();
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  /// Ends a step that cannot be finished: tells the other ranks, and keeps its gradients in u and
  /// v, as after a step that sent nothing.
  void abandon(const Error& cause) noexcept;
  /// Exchanges what backward did not fill, and waits for everything. An Error has abandoned the
  /// step.
  Collected finish();
  /// Forgets the step's gradients; ready for the next.
  void reset() noexcept;
  /// Why a step was abandoned; none can follow.
  const std::optional<Error>& failure() const noexcept { return failure_; }
  /// backward() was called and the step is not finished.
  bool under_way() const noexcept;
  /// Buckets of it have been sent: it has to be finished.
  bool sent() const noexcept { return exchange_.submitted() > 0; }

  /// backward() goes unnoticed while this is above zero.
  int no_sync = 0;
  /// Gradients are divided by it.
  double loss_scale = 1.0;

 private:
  /// A gradient as it was picked up.
  struct Picked {
    torch::Tensor source;  // the parameter's grad()
    torch::Tensor values;  // the same as contiguous fp32
    std::int64_t version = 0;
    std::optional<double> norm;
    bool touched = false;  // by backward, in this step
    int passes = 0;        // of backward that count
  };

  void before(std::size_t tensor);
  void after(std::size_t tensor);
  bool pick_up(std::size_t tensor);
  void check_unchanged(std::size_t tensor) const;
  bool is_unchanged(std::size_t tensor) const;
  double norm_of(std::size_t tensor) const;
  void measure_norms();
  void submit_next();
  std::vector<Gradient> gradients_of(std::size_t bucket) const;
  std::vector<Gradient> all_gradients() const;
  Compressor::Call call_of_step() const;

  Exchange& exchange_;
  std::vector<torch::Tensor> tensors_;
  std::vector<std::string> names_;
  Buckets buckets_;
  PipelineOptions options_;
  std::vector<std::size_t> bucket_of_;

  std::mutex mutex_;  // autograd may run a graph on several threads
  std::vector<Picked> picked_;
  std::vector<std::size_t> missing_;  // by bucket: tensors that have not come yet
  std::optional<Error> failure_;
  GradientHooks hooks_;
};

}  // namespace dgc::sgd
