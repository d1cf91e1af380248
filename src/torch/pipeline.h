// The way of a step's gradients from backward to the exchange: picked up as they come, bucket after
// bucket, on a thread beside backward.
#pragma once

#include <torch/types.h>

#include <atomic>
#include <future>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "dgc/exchange.h"
#include "exchange/presence.h"
#include "torch/bucket_plan.h"
#include "torch/hooks.h"

namespace dgc::sgd {

struct PipelineOptions {
  /// Exchange buckets as they fill. Without it gradients are only measured until finish().
  bool overlap = true;
  bool measure = false;         ///< norms are wanted: clipping, or skipping what is not finite
  bool skip_nonfinite = false;  ///< needs `measure`, and no overlap
  /// Clipping is by a norm that only the exchange can know (hierarchical).
  bool norm_from_exchange = false;
  int accumulation_steps = 1;
};

/// What all ranks contributed to a step. Nothing is applied yet.
struct Collected {
  std::vector<Bucket> buckets;
  std::vector<bool> present;  ///< by tensor: some rank had a gradient
  bool skipped = false;       ///< not finite somewhere; nothing was accumulated
  bool stop = false;          ///< some rank asked for it
  double gradient_squares = 0.0;
  double residual_squares = 0.0;
  double waiting = 0.0;    ///< seconds that finish() blocked
  double agreeing = 0.0;   ///< seconds that the ranks took to meet before buckets
  double measuring = 0.0;  ///< seconds that norms for statistics took
  Traffic moved;
};

/// One rank's pipeline, over the tensors that an Exchange was made of. Used by the thread that
/// calls backward.
class Pipeline {
 public:
  Pipeline(Group& group, Exchange& exchange, State& state, std::vector<torch::Tensor> tensors,
           std::vector<std::string> names, BucketPlan plan, const PipelineOptions& options);
  /// Waits for what is under way. A step that was begun and not finished is announced as failed.
  ~Pipeline();
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  /// Ends a step that cannot be finished: waits for what is under way, tells the other ranks, and
  /// gives u and v back what was selected, as after a step that sent nothing.
  void abandon(const Error& cause) noexcept;
  /// Exchanges what backward did not fill, and waits for everything. An Error has abandoned the
  /// step.
  Collected finish();
  /// Forgets the step's gradients; ready for the next.
  void reset() noexcept;
  /// Why a step was abandoned; none can follow. (The group's own word on that is not to be read
  /// while buckets are under way.)
  const std::optional<Error>& failure() const noexcept { return failure_; }
  /// backward() was called and the step is not finished.
  bool under_way() const noexcept;
  /// Buckets of it have been sent: it has to be finished.
  bool sent() const noexcept { return submitted_ > 0; }

  /// backward() goes unnoticed while this is above zero.
  int no_sync = 0;
  /// Gradients are divided by it.
  double loss_scale = 1.0;
  /// Told to the other ranks with the next bucket.
  std::atomic<bool> stop{false};

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
  /// What the exchange of a bucket found out; written by its thread, read after its future.
  struct Result {
    exchange::Presence agreed;
    double gradient_squares = 0.0;
    double residual_squares = 0.0;
    double agreeing = 0.0;
    double measuring = 0.0;
    Traffic moved;
  };

  void before(std::size_t tensor);
  void after(std::size_t tensor);
  bool pick_up(std::size_t tensor);
  void check_unchanged(std::size_t tensor) const;
  bool is_unchanged(std::size_t tensor) const;
  double norm_of(std::size_t tensor) const;
  void measure_norms();
  void check_finite() const;
  void submit_next();
  exchange::Presence own_presence(std::size_t bucket) const;
  std::vector<Gradient> gradients_of(std::size_t bucket, const std::vector<bool>& wanted);
  std::vector<std::uint64_t> following(std::size_t bucket, bool after_presence) const;
  Bucket exchange_bucket(std::size_t bucket, const exchange::Presence& mine,
                         const Compressor::Call& call);
  Compressor::Call call_of_step() const;
  void measure(std::size_t bucket, std::span<const Gradient> gradients, double scale);
  void accumulate_rest() noexcept;
  Collected collected(std::vector<Bucket> buckets, double waiting) const;

  Group& group_;
  Exchange& exchange_;
  State& state_;
  std::vector<torch::Tensor> tensors_;
  std::vector<std::string> names_;
  BucketPlan plan_;
  PipelineOptions options_;
  std::vector<std::size_t> bucket_of_;
  std::vector<float> zeros_;  // stands for gradients that others have and this rank has not

  std::mutex mutex_;  // autograd may run a graph on several threads
  std::vector<Picked> picked_;
  std::vector<std::size_t> missing_;  // by bucket: tensors that have not come yet
  std::size_t submitted_ = 0;         // buckets
  std::optional<Error> failure_;
  std::vector<Result> results_;
  std::vector<std::future<Bucket>> pending_;
  Driver driver_;
  GradientHooks hooks_;
};

}  // namespace dgc::sgd
