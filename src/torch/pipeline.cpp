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

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

Pipeline::Pipeline(Group& group, Exchange& exchange, State& state,
                   std::vector<torch::Tensor> tensors, std::vector<std::string> names,
                   BucketPlan plan, const PipelineOptions& options)
    : group_(group),
      exchange_(exchange),
      state_(state),
      tensors_(std::move(tensors)),
      names_(std::move(names)),
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
  failure_ = cause;
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

bool Pipeline::under_way() const noexcept {
  return sent() ||
         std::any_of(picked_.begin(), picked_.end(), [](const Picked& p) { return p.touched; });
}

/// Autograd is about to add to grad(), which the other thread may be reading.
void Pipeline::before(std::size_t tensor) {
  const std::scoped_lock lock(mutex_);
  if (bucket_of_[tensor] >= submitted_) return;
  throw Error(
      ErrorCode::wrong_order, "Sgd", fmt::format("parameter '{}'", names_[tensor]),
      fmt::format("gets another gradient in step {}, after its bucket was sent", state_.step()),
      "call step() after each backward(), set accumulation_steps, or use no_sync()");
}

void Pipeline::after(std::size_t tensor) {
  const std::scoped_lock lock(mutex_);
  Picked& picked = picked_[tensor];
  picked.touched = true;
  if (no_sync > 0) return;
  if (++picked.passes != options_.accumulation_steps) return;
  if (!pick_up(tensor)) return;
  if (options_.overlap) {
    --missing_[bucket_of_[tensor]];
    while (submitted_ < plan_.size() && missing_[submitted_] == 0) submit_next();
  } else if (options_.measure) {
    picked.norm = norm_of(tensor);
  }
}

double Pipeline::norm_of(std::size_t tensor) const {
  const Gradient gradient{tensor, values_of(picked_[tensor].values)};
  if (!options_.norm_from_exchange) return exchange_.compressor().norm({&gradient, 1});
  // The compressor knows shares of tensors only; this norm is not used but to find what is
  // infinite.
  double squares = 0.0;
  for (const float x : gradient.values) squares += static_cast<double>(x) * x;
  return std::sqrt(squares);
}

/// False where there is no gradient.
bool Pipeline::pick_up(std::size_t tensor) {
  Picked& picked = picked_[tensor];
  const torch::Tensor& source = tensors_[tensor].grad();
  if (!source.defined()) return false;
  if (source.sizes() != tensors_[tensor].sizes()) {
    throw Error(ErrorCode::shape_mismatch, "Sgd", fmt::format("parameter '{}'", names_[tensor]),
                "has a gradient of another shape");
  }
  picked.source = source;
  picked.version = source.layout() == torch::kStrided ? source._version() : 0;
  picked.values = as_contiguous_float(source);
  picked.norm.reset();
  return true;
}

bool Pipeline::is_unchanged(std::size_t tensor) const {
  const Picked& picked = picked_[tensor];
  const torch::Tensor& now = tensors_[tensor].grad();
  if (!picked.source.defined() || !now.defined()) {
    return picked.source.defined() == now.defined();
  }
  // Sparse tensors have no versions.
  return now.is_same(picked.source) &&
         (now.layout() != torch::kStrided || now._version() == picked.version);
}

void Pipeline::check_unchanged(std::size_t tensor) const {
  if (is_unchanged(tensor)) return;
  throw Error(
      ErrorCode::wrong_order, "Sgd", fmt::format("parameter '{}'", names_[tensor]),
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

/// Bounds of the next two swaps: those of messages and of presence take turns. The next step is
/// taken to have the ratio of this one.
std::vector<std::uint64_t> Pipeline::following(std::size_t bucket, bool after_presence) const {
  const std::uint64_t presence = exchange::presence_bytes(tensors_.size());
  const std::size_t with = after_presence ? bucket : (bucket + 1) % plan_.size();
  const std::uint64_t message = exchange_.swap_bound(plan_[with]);
  if (message == 0) return {presence, presence};  // the algorithm swaps no messages
  return after_presence ? std::vector{message, presence} : std::vector{presence, message};
}

Bucket Pipeline::exchange_bucket(std::size_t bucket, const exchange::Presence& mine,
                                 const Compressor::Call& call) {
  Result& result = results_[bucket];
  const Traffic before = group_.traffic();
  const auto start = std::chrono::steady_clock::now();
  try {
    result.agreed = exchange::share_presence(group_, mine, following(bucket, true));
  } catch (const std::exception& error) {
    group_.fail(as_error(error));
    throw;
  }
  result.agreeing = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  Bucket collected;
  const bool skip = options_.skip_nonfinite && result.agreed.nonfinite;
  const std::vector<Gradient> gradients = gradients_of(bucket, result.agreed.present);
  if (!skip && !gradients.empty()) {
    collected = exchange_.collect(gradients, call, following(bucket, false));
    const auto collected_at = std::chrono::steady_clock::now();
    measure(bucket, gradients, call.scale);
    result.measuring = seconds_since(collected_at);
  }
  result.moved = group_.traffic() - before;
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

/// Of gradients whose hook did not run, or that were changed since.
void Pipeline::measure_norms() {
  for (std::size_t t = 0; t < picked_.size(); ++t) {
    Picked& picked = picked_[t];
    if (!picked.values.defined() || picked.norm) continue;
    picked.norm = norm_of(t);
  }
}

/// A gradient is squared as double, so that only what is not finite has such a norm.
void Pipeline::check_finite() const {
  for (std::size_t t = 0; t < picked_.size(); ++t) {
    if (std::isfinite(picked_[t].norm.value_or(0.0))) continue;
    const std::span<const float> values = values_of(picked_[t].values);
    const auto bad =
        std::find_if_not(values.begin(), values.end(), [](float x) { return std::isfinite(x); });
    throw Error(ErrorCode::nonfinite_gradient, "Sgd", fmt::format("parameter '{}'", names_[t]),
                fmt::format("its gradient is {} at index {}, step {}, rank {}", *bad,
                            bad - values.begin(), state_.step(), group_.rank()),
                "nothing was accumulated; look at the loss and the learning rate");
  }
}

/// Scale and norm for a step that goes as a whole.
Compressor::Call Pipeline::call_of_step() const {
  Compressor::Call call{.scale = 1.0 / loss_scale};
  if (!options_.measure || options_.norm_from_exchange) return call;
  double squares = 0.0;
  for (const Picked& picked : picked_) {
    const double norm = picked.norm.value_or(0.0);
    squares += norm * norm;
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
      } else if (!is_unchanged(t) || !picked_[t].source.defined() ||
                 picked_[t].source.layout() != torch::kStrided) {
        // Never seen by a hook, or changed since.
        if (!pick_up(t)) picked_[t] = {};
      }
    }
    if (options_.overlap) {
      while (submitted_ < plan_.size()) submit_next();
      const auto start = std::chrono::steady_clock::now();
      for (auto& bucket : pending_) buckets.push_back(bucket.get());
      waiting = std::chrono::steady_clock::now() - start;
    } else if (!plan_.empty()) {
      if (options_.measure) measure_norms();
      exchange::Presence mine = own_presence(0);
      if (options_.skip_nonfinite) {
        for (const Picked& p : picked_) mine.nonfinite |= !std::isfinite(p.norm.value_or(0.0));
      } else {
        check_finite();
      }
      submitted_ = 1;
      const auto start = std::chrono::steady_clock::now();
      buckets.push_back(exchange_bucket(0, mine, call_of_step()));
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
  // Shares of a host's mean cannot be made of this worker's gradient.
  if (state_.workers() != static_cast<std::uint32_t>(group_.size())) return;
  Compressor& compressor = exchange_.compressor();
  for (std::size_t t = 0; t < tensors_.size(); ++t) {
    if (compressor.accumulated(t) || !picked_[t].values.defined()) continue;
    try {
      const Gradient gradient{t, values_of(picked_[t].values)};
      std::vector<std::byte> scratch(compressor.bound({&gradient, 1}));
      compressor.compress({&gradient, 1}, scratch, call_of_step());
    } catch (const std::exception&) {
      // Not finite, say: then it does not belong there.
    }
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
    all.agreeing += result.agreeing;
    all.measuring += result.measuring;
    all.moved = {all.moved.bytes_sent + result.moved.bytes_sent,
                 all.moved.bytes_received + result.moved.bytes_received,
                 all.moved.messages_sent + result.moved.messages_sent};
    for (const std::size_t t : plan_[b]) all.present[t] = result.agreed.present[t];
  }
  return all;
}

}  // namespace dgc::sgd
