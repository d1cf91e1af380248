// One bucket of a step, from this rank's gradients to what all ranks contributed.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "exchange/context.h"
#include "exchange/shares.h"

namespace dgc::exchange {

/// u and v of a tensor before a step that may turn out not to concern it.
struct Kept {
  std::size_t tensor;
  std::vector<float> velocity;
  std::vector<float> residual;
};

/// Runs buckets one after the other, each with the ones after it in mind.
class BucketRunner {
 public:
  BucketRunner(Context& context, const std::optional<Topology>& topology, const Buckets& buckets)
      : context_(context), topology_(topology), buckets_(buckets) {}

  /// What a rank gives to a bucket.
  struct Given {
    std::size_t bucket = 0;
    std::vector<Gradient> gradients;  // those it has
    Compressor::Call call;
    bool stop = false;
    std::optional<std::uint64_t> parameters;  // their hash, when it is due
  };
  Contents run(const Given& given);

  /// The step was delivered: tensors that no rank had a gradient of get back what they were.
  void put_back_absent(const std::vector<bool>& present) noexcept;
  /// It was not: all that this rank had no gradient of.
  void put_back() noexcept;

 private:
  Task task_of(const Given& given);
  void exchange(Task& task, Contents& contents);
  void drop_absent(Task& task, const Notice& agreed) const;
  void check(const Given& given) const;
  bool agrees_first() const;
  /// Tensors that go as frames, and those that go densely; or owners for all. The same on every
  /// rank.
  struct Ways {
    std::vector<std::size_t> sparse = {};
    std::vector<std::size_t> dense = {};
    bool owner = false;
  };
  Ways ways_of(std::span<const std::size_t> tensors, std::uint64_t step) const;
  std::vector<std::uint64_t> bounds_of(std::size_t bucket, std::uint64_t step) const;
  void measure(const Task& task, Contents& contents) const;

  Context& context_;
  const std::optional<Topology>& topology_;
  const Buckets& buckets_;
  std::vector<float> zeros_;  // stands for gradients that others may have and this rank has not
  std::vector<Kept> kept_;    // of the current step
};

}  // namespace dgc::exchange
