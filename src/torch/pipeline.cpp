// Order is everything here: all ranks exchange the same buckets one after the other, so that a
// bucket which fills early waits for those before it, and what is still missing at the end of
// backward (parameters that were not used) follows in finish(), in the same order.
//
// With clipping, or when a step may have to be skipped, nothing can be accumulated before all
// gradients are known: backward then measures only, and finish() exchanges one bucket with
// everything.
#include "torch/pipeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "torch/parameters.h"
#include "torch/sampled_norm.h"

namespace dgc::sgd {
namespace {

std::span<const float> values_of(const torch::Tensor& tensor) {
  return {tensor.data_ptr<float>(), static_cast<std::size_t>(tensor.numel())};
}

}  // namespace

Pipeline::Pipeline(Group& group, Exchange& exchange, State& state,
                   std::vector<torch::Tensor> tensors, BucketPlan plan,
                   const PipelineOptions& options)
    : group_(group),
      exchange_(exchange),
      state_(state),
      tensors_(std::move(tensors)),
      plan_(std::move(plan)),
      options_(options),
      bucket_of_(tensors_.size()),
      picked_(tensors_.size()),
      hooks_(
          tensors_, [this](std::size_t t) { before(t); }, [this](std::size_t t) { after(t); }) {
  for (std::size_t b = 0; b < plan_.size(); ++b) {
    for (const std::size_t t : plan_[b]) bucket_of_[t] = b;
  }
  reset();
}

Pipeline::~Pipeline() {
  if (submitted_ == 0) return;
  // The others are waiting for the rest of this step.
  abandon(Error(ErrorCode::wrong_order, "Sgd", fmt::format("rank {}", group_.rank()),
                fmt::format("gave up in step {}, between backward() and step()", state_.step()),
                "look at what ended that rank"));
}

void Pipeline::abandon(const Error& cause) noexcept {
  // The group is the other thread's until that is done.
  for (auto& bucket : pending_) {
    if (bucket.valid()) bucket.wait();
  }
  group_.fail(cause);
  exchange_.restore();
  accumulate_rest();
  reset();
}

void Pipeline::reset() noexcept {
  for (Picked& picked : picked_) picked = {};
  missing_.clear();
  for (const auto& bucket : plan_) missing_.push_back(bucket.size());
  results_.assign(plan_.size(), {});
  pending_.clear();
  submitted_ = 0;
}

/// Autograd is about to add to grad(), which the other thread may be reading.
void Pipeline::before(std::size_t tensor) {
  const std::scoped_lock lock(mutex_);
  if (bucket_of_[tensor] >= submitted_) return;
  throw Error(
      ErrorCode::wrong_order, "Sgd", fmt::format("parameter '{}'", state_.tensors()[tensor].name),
      fmt::format("gets another gradient in step {}, after its bucket was sent", state_.step()),
      "call step() after each backward(), set accumulation_steps, or use no_sync()");
}

void Pipeline::after(std::size_t tensor) {
  const std::scoped_lock lock(mutex_);
  if (no_sync > 0) return;
  Picked& picked = picked_[tensor];
  if (++picked.passes != options_.accumulation_steps) return;
  if (!pick_up(tensor)) return;
  if (options_.overlap) {
    --missing_[bucket_of_[tensor]];
    while (submitted_ < plan_.size() && missing_[submitted_] == 0) submit_next();
  } else if (options_.measure) {
    const Gradient gradient{tensor, values_of(picked.values)};
    picked.norm = exchange_.compressor().norm({&gradient, 1});
  }
}

/// False where there is no gradient.
bool Pipeline::pick_up(std::size_t tensor) {
  Picked& picked = picked_[tensor];
  const torch::Tensor& source = tensors_[tensor].grad();
  if (!source.defined()) return false;
  if (source.sizes() != tensors_[tensor].sizes()) {
    throw Error(ErrorCode::shape_mismatch, "Sgd",
                fmt::format("parameter '{}'", state_.tensors()[tensor].name),
                "has a gradient of another shape");
  }
  picked.source = source;
  picked.version = source.layout() == torch::kStrided ? source._version() : 0;
  picked.values = as_contiguous_float(source);
  picked.norm.reset();
  return true;
}

void Pipeline::check_unchanged(std::size_t tensor) const {
  const Picked& picked = picked_[tensor];
  if (!picked.source.defined()) return;
  const torch::Tensor& now = tensors_[tensor].grad();
  if (now.is_same(picked.source) &&
      (now.layout() != torch::kStrided || now._version() == picked.version)) {
    return;
  }
  throw Error(
      ErrorCode::wrong_order, "Sgd", fmt::format("parameter '{}'", state_.tensors()[tensor].name),
      fmt::format("its gradient was changed after backward had sent it, in step {}", state_.step()),
      "make the optimizer with overlap(false), or use its clip_norm and loss_scale");
}

exchange::Presence Pipeline::own_presence(std::size_t bucket) const {
  // One bit for each tensor of the model, whatever the bucket: ranks that are out of step then find
  // a message of the size they expect, and say so, instead of a broken stream.
  exchange::Presence mine{.step = state_.step(),
                          .bucket = static_cast<std::uint32_t>(bucket),
                          .present = std::vector<bool>(tensors_.size()),
                          .stop = stop.load()};
  for (const std::size_t t : plan_[bucket]) mine.present[t] = picked_[t].source.defined();
  return mine;
}

void Pipeline::submit_next() {
  const std::size_t bucket = submitted_++;
  pending_.push_back(driver_.submit([this, bucket, mine = own_presence(bucket),
                                     call = Compressor::Call{.scale = 1.0 / loss_scale}] {
    return exchange_bucket(bucket, mine, call);
  }));
}

std::vector<Gradient> Pipeline::gradients_of(std::size_t bucket, const std::vector<bool>& wanted) {
  std::vector<Gradient> gradients;
  for (const std::size_t t : plan_[bucket]) {
    if (!wanted[t]) continue;
    const auto elements = static_cast<std::size_t>(tensors_[t].numel());
    if (!picked_[t].values.defined() && zeros_.size() < elements) zeros_.resize(elements);
    gradients.push_back({t, {}});
  }
  // Spans last: zeros_ has stopped growing.
  for (Gradient& gradient : gradients) {
    const torch::Tensor& values = picked_[gradient.tensor].values;
    gradient.values = values.defined()
                          ? values_of(values)
                          : std::span<const float>(zeros_).first(
                                static_cast<std::size_t>(tensors_[gradient.tensor].numel()));
  }
  return gradients;
}

Bucket Pipeline::exchange_bucket(std::size_t bucket, exchange::Presence mine,
                                 const Compressor::Call& call) {
  Result& result = results_[bucket];
  try {
    result.agreed = exchange::agree(group_, mine);
  } catch (const std::exception& error) {
    group_.fail(as_error(error));
    throw;
  }
  if (options_.skip_nonfinite && result.agreed.nonfinite) return {};
  const std::vector<Gradient> gradients = gradients_of(bucket, result.agreed.present);
  if (gradients.empty()) return {};
  result.compressed = true;
  Bucket collected = exchange_.collect(gradients, call);
  measure(bucket, gradients, call.scale);
  return collected;
}

void Pipeline::measure(std::size_t bucket, std::span<const Gradient> gradients, double scale) {
  Result& result = results_[bucket];
  const double factor = scale * exchange_.compressor().clip_factor() / group_.size();
  for (const Gradient& g : gradients) {
    result.gradient_squares += sampled_squares(g.values, state_.step()) * factor * factor;
    result.residual_squares +=
        sampled_squares(std::as_const(state_).residual(g.tensor), state_.step());
  }
}

/// Scale and norm for a step that goes as a whole.
Compressor::Call Pipeline::call_of_step() {
  Compressor::Call call{.scale = 1.0 / loss_scale};
  if (!options_.measure || options_.norm_from_exchange) return call;
  double squares = 0.0;
  for (std::size_t t = 0; t < picked_.size(); ++t) {
    Picked& picked = picked_[t];
    if (!picked.values.defined()) continue;
    if (!picked.norm) {
      const Gradient gradient{t, values_of(picked.values)};
      picked.norm = exchange_.compressor().norm({&gradient, 1});
    }
    squares += *picked.norm * *picked.norm;
  }
  call.norm = std::sqrt(squares);
  return call;
}

Collected Pipeline::finish() {
  std::vector<Bucket> buckets;
  std::chrono::duration<double> waiting{0.0};
  try {
    const std::scoped_lock lock(mutex_);
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      if (bucket_of_[t] < submitted_) {
        check_unchanged(t);
        continue;
      }
      // Picked up before, but perhaps changed since; or never seen by a hook.
      const torch::Tensor& now = tensors_[t].grad();
      const Picked& picked = picked_[t];
      const bool fresh = now.defined() && picked.source.defined() && now.is_same(picked.source) &&
                         now.layout() == torch::kStrided && now._version() == picked.version;
      if (!fresh && !pick_up(t)) picked_[t] = {};
    }
    if (options_.overlap) {
      while (submitted_ < plan_.size()) submit_next();
      const auto start = std::chrono::steady_clock::now();
      for (auto& bucket : pending_) buckets.push_back(bucket.get());
      waiting = std::chrono::steady_clock::now() - start;
    } else if (!plan_.empty()) {
      const Compressor::Call call = call_of_step();
      exchange::Presence mine = own_presence(0);
      if (options_.skip_nonfinite) {
        // A gradient is squared as double, so that only what is not finite has such a norm.
        for (const Picked& picked : picked_)
          mine.nonfinite |= !std::isfinite(picked.norm.value_or(0.0));
      }
      submitted_ = 1;
      const auto start = std::chrono::steady_clock::now();
      buckets.push_back(exchange_bucket(0, mine, call));
      const Bucket::Seconds& seconds = buckets[0].seconds();
      waiting = std::chrono::steady_clock::now() - start -
                std::chrono::duration<double>(seconds.compress + seconds.encode);
    }
  } catch (const std::exception& error) {
    abandon(as_error(error));
    throw;
  }
  return collected(std::move(buckets), waiting.count());
}

/// What a failed step did not come to compress is accumulated all the same, as in a step that sent
/// nothing: a state saved after it has lost no gradient.
void Pipeline::accumulate_rest() noexcept {
  try {
    for (std::size_t b = 0; b < plan_.size(); ++b) {
      if (results_[b].compressed) continue;
      std::vector<bool> own(tensors_.size());
      for (const std::size_t t : plan_[b]) own[t] = picked_[t].values.defined();
      const std::vector<Gradient> gradients = gradients_of(b, own);
      if (gradients.empty() || state_.workers() != static_cast<std::uint32_t>(group_.size()))
        continue;
      std::vector<std::byte> scratch(exchange_.compressor().bound(gradients));
      exchange_.compressor().compress(
          gradients, scratch,
          options_.overlap ? Compressor::Call{.scale = 1.0 / loss_scale} : call_of_step());
    }
  } catch (const std::exception&) {
    // Not finite, say: then it does not belong there.
  }
  exchange_.restore();
}

Collected Pipeline::collected(std::vector<Bucket> buckets, double waiting) const {
  Collected all{.buckets = std::move(buckets),
                .present = std::vector<bool>(tensors_.size()),
                .waiting = waiting};
  for (std::size_t b = 0; b < plan_.size(); ++b) {
    const Result& result = results_[b];
    all.skipped |= options_.skip_nonfinite && result.agreed.nonfinite;
    all.stop |= result.agreed.stop;
    all.gradient_squares += result.gradient_squares;
    all.residual_squares += result.residual_squares;
    for (const std::size_t t : plan_[b]) all.present[t] = result.agreed.present[t];
  }
  return all;
}

}  // namespace dgc::sgd
