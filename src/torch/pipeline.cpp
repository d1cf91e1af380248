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
#include <cmath>

#include "torch/parameters.h"

namespace dgc::sgd {
namespace {

std::span<const float> values_of(const torch::Tensor& tensor) {
  return {tensor.data_ptr<float>(), static_cast<std::size_t>(tensor.numel())};
}

}  // namespace

Pipeline::Pipeline(Exchange& exchange, std::vector<torch::Tensor> tensors,
                   std::vector<std::string> names, Buckets buckets, const PipelineOptions& options)
    : exchange_(exchange),
      tensors_(std::move(tensors)),
      names_(std::move(names)),
      buckets_(std::move(buckets)),
      options_(options),
      bucket_of_(tensors_.size()),
      picked_(tensors_.size()),
      hooks_(
          tensors_, [this](std::size_t t) { before(t); }, [this](std::size_t t) { after(t); }) {
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    for (const std::size_t t : buckets_[b]) bucket_of_[t] = b;
  }
  reset();
}

Pipeline::~Pipeline() {
  if (!sent()) return;
  // The others are waiting for the rest of this step; and what is under way reads our gradients.
  abandon(Error(
      ErrorCode::wrong_order, "Sgd", "optimizer",
      fmt::format("gave up in step {}, between backward() and step()", exchange_.state().step()),
      "look at what ended that rank"));
}

void Pipeline::abandon(const Error& cause) noexcept {
  exchange_.abandon(cause, all_gradients(), call_of_step());
  failure_ = cause;
  reset();
}

void Pipeline::reset() noexcept {
  for (Picked& picked : picked_) picked = {};
  missing_.clear();
  for (const auto& bucket : buckets_) missing_.push_back(bucket.size());
}

bool Pipeline::under_way() const noexcept {
  return sent() ||
         std::any_of(picked_.begin(), picked_.end(), [](const Picked& p) { return p.touched; });
}

/// Autograd is about to add to grad(), which the other thread may be reading.
void Pipeline::before(std::size_t tensor) {
  const std::scoped_lock lock(mutex_);
  if (bucket_of_[tensor] >= exchange_.submitted()) return;
  throw Error(ErrorCode::wrong_order, "Sgd", fmt::format("parameter '{}'", names_[tensor]),
              fmt::format("gets another gradient in step {}, after its bucket was sent",
                          exchange_.state().step()),
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
    while (exchange_.submitted() < buckets_.size() && missing_[exchange_.submitted()] == 0) {
      submit_next();
    }
  } else if (options_.measure) {
    picked.norm = norm_of(tensor);
  }
}

double Pipeline::norm_of(std::size_t tensor) const {
  const Gradient gradient{tensor, values_of(picked_[tensor].values)};
  return exchange_.norm({&gradient, 1});
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
  throw Error(ErrorCode::wrong_order, "Sgd", fmt::format("parameter '{}'", names_[tensor]),
              fmt::format("its gradient was changed after backward had sent it, in step {}",
                          exchange_.state().step()),
              "make the optimizer with overlap(false), or use its clip_norm and loss_scale");
}

std::vector<Gradient> Pipeline::gradients_of(std::size_t bucket) const {
  std::vector<Gradient> gradients;
  for (const std::size_t t : buckets_[bucket]) {
    if (picked_[t].values.defined()) gradients.push_back({t, values_of(picked_[t].values)});
  }
  return gradients;
}

std::vector<Gradient> Pipeline::all_gradients() const {
  std::vector<Gradient> gradients;
  for (std::size_t t = 0; t < picked_.size(); ++t) {
    if (picked_[t].values.defined()) gradients.push_back({t, values_of(picked_[t].values)});
  }
  return gradients;
}

void Pipeline::submit_next() {
  exchange_.submit(gradients_of(exchange_.submitted()), call_of_step());
}

/// Of gradients whose hook did not run, or that were changed since.
void Pipeline::measure_norms() {
  for (std::size_t t = 0; t < picked_.size(); ++t) {
    Picked& picked = picked_[t];
    if (!picked.values.defined() || picked.norm) continue;
    picked.norm = norm_of(t);
  }
}

/// Scale, and the norm where it is wanted: then the step goes as a whole. A gradient is squared as
/// double, so that only what is not finite has such a norm.
Compressor::Call Pipeline::call_of_step() const {
  Compressor::Call call{.scale = 1.0 / loss_scale};
  if (!options_.measure) return call;
  double squares = 0.0;
  for (const Picked& picked : picked_) {
    const double norm = picked.norm.value_or(0.0);
    squares += norm * norm;
  }
  call.norm = std::sqrt(squares);
  return call;
}

Collected Pipeline::finish() {
  try {
    const std::scoped_lock lock(mutex_);
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      if (bucket_of_[t] < exchange_.submitted()) {
        check_unchanged(t);
      } else if (!is_unchanged(t) || !picked_[t].source.defined() ||
                 picked_[t].source.layout() != torch::kStrided) {
        // Never seen by a hook, or changed since.
        if (!pick_up(t)) picked_[t] = {};
      }
    }
    if (options_.measure) measure_norms();
    while (exchange_.submitted() < buckets_.size()) submit_next();
    return exchange_.finish();
  } catch (const std::exception& error) {
    abandon(as_error(error));
    throw;
  }
}

}  // namespace dgc::sgd
