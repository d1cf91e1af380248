// A step over a Group: submit buckets (src/exchange/bucket.cpp moves and checks what all ranks
// selected), finish, apply, commit. Parameters and state change only after everything has arrived
// and been checked; whatever fails before, the others are told and u and v get back what was
// selected (docs/exchange.md). All that ends a step early goes through abandon().
#include "dgc/exchange.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <optional>
#include <utility>

#include "compress/internals.h"
#include "dgc/version.h"
#include "engine/ended.h"
#include "exchange/bucket.h"
#include "exchange/driver.h"
#include "exchange/free_ratio.h"
#include "exchange/link_costs.h"
#include "exchange/options.h"
#include "exchange/senders.h"
#include "wire/message.h"

namespace dgc {

using namespace exchange;

struct Collected::Contents {
  std::vector<exchange::Contents> buckets;
};

Collected::Collected() : contents_(std::make_unique<Contents>()) {}
Collected::Collected(Collected&&) noexcept = default;
Collected& Collected::operator=(Collected&&) noexcept = default;
Collected::~Collected() = default;

namespace {

/// Everything that has to be the same on all ranks, one fact a line.
std::string describe(const Group& group, const std::vector<TensorSpec>& model,
                     const Buckets& buckets, const State& state, const CompressOptions& compress,
                     const ExchangeOptions& options) {
  std::string text = fmt::format("dgc version {}\nworld size {}\n", DGC_VERSION, group.size());
  for (const TensorSpec& tensor : model) {
    text += fmt::format("tensor {} {} {}\n", tensor.name, tensor.shape_text(),
                        tensor.dense ? "dense" : "sparse");
  }
  for (const auto& bucket : buckets) text += fmt::format("bucket of {}\n", fmt::join(bucket, ", "));
  text += compared_text(compress_options(), compress);
  text += compared_text(exchange_options(), options);
  if (options.costs) {
    const Costs& c = *options.costs;
    text += fmt::format("costs {} {} {} {} {} {} {} {} {} {} {} {}\n", c.link.bytes_per_second,
                        c.link.delay.count(), c.select, c.encode, c.entry, c.place, c.slice,
                        c.dense, c.dense16, c.byte, c.message, c.round);
  }
  text += fmt::format("workers {}\nstep {}\n", state.workers(), state.step());
  return text;
}

void check_buckets(const Buckets& buckets, std::size_t tensors) {
  std::vector<bool> seen(tensors);
  for (const auto& bucket : buckets) {
    std::size_t next = 0;
    for (const std::size_t t : bucket) {
      if (t >= tensors || t < next || seen[t]) {
        throw Error(ErrorCode::invalid_argument, "exchange", fmt::format("tensor {}", t),
                    "is in two buckets, not in order, or not in the model",
                    "every tensor once, in increasing order");
      }
      seen[t] = true;
      next = t + 1;
    }
  }
  if (std::find(seen.begin(), seen.end(), false) == seen.end()) return;
  throw Error(ErrorCode::invalid_argument, "exchange", "buckets", "lack a tensor of the model");
}

Buckets buckets_or_one(Buckets buckets, std::size_t tensors) {
  if (!buckets.empty()) return buckets;
  buckets.emplace_back();
  for (std::size_t t = 0; t < tensors; ++t) buckets[0].push_back(t);
  return buckets;
}

/// Counting senders takes the messages of all.
ExchangeOptions with_algorithm(ExchangeOptions options) {
  if (options.mean == Mean::senders && options.algorithm == Algorithm::automatic) {
    options.algorithm = Algorithm::allgather;
  }
  return options;
}

}  // namespace

struct Exchange::Impl {
  Group& group;
  std::vector<TensorSpec> model;
  Buckets buckets;
  ExchangeOptions options;
  std::optional<Topology> topology;
  std::optional<State> own;
  State& state;
  Compressor compressor;
  Costs costs;  // for `automatic`
  Context context{group, model, state, compressor, options, costs};
  BucketRunner runner{context, topology, buckets};

  std::atomic<bool> stop{false};
  bool compared = false;                    // parameters of all ranks, once at least
  std::optional<std::uint64_t> parameters;  // their hash, where it is due with the next step
  std::optional<Error> failure;             // what ended a step; none can follow
  std::size_t submitted = 0;                // buckets of the current step
  std::vector<std::future<exchange::Contents>> pending;
  std::optional<Driver> driver;  // last: it ends before what its work refers to

  Impl(Group& g, std::vector<TensorSpec> m, CompressOptions c, ExchangeOptions o, State* given,
       Buckets b)
      : group(g),
        model(std::move(m)),
        buckets(buckets_or_one(std::move(b), model.size())),
        options(with_algorithm(std::move(o))),
        topology(find_topology(g, options)),
        own(given != nullptr ? std::optional<State>() : make_state(c.needs_velocity())),
        state(given != nullptr ? *given : *own),
        compressor(state, std::move(c)) {
    check_options(options);
    if (options.mean == Mean::senders && compressor.options().feedback() != 0.0f) {
      throw Error(ErrorCode::invalid_argument, "exchange", "mean",
                  "global momentum continues the mean over all workers, not over the senders",
                  "use local momentum correction, or the mean over all workers");
    }
    check_buckets(buckets, model.size());
    if (topology && compressor.options().clip_norm > 0.0 && buckets.size() > 1) {
      throw Error(
          ErrorCode::invalid_argument, "exchange", "buckets",
          "clipping is by the norm of a host's mean gradient, which has to go as a whole then",
          "give no buckets");
    }
    check_state();
  }

  Costs find_costs() const {
    if (options.costs) return *options.costs;
    if (options.link) return costs_over(*options.link);
    if (options.algorithm != Algorithm::automatic && !options.measure) return {};
    std::uint64_t elements = 0;
    for (const TensorSpec& tensor : model) elements += tensor.elements();
    return measure_costs(group, {compressor.options(), options.dense_transport, elements});
  }

  /// Tensors, rank and number of workers of this rank's state.
  std::vector<TensorSpec> state_tensors() const {
    return topology ? share_of(model, *topology) : model;
  }
  std::uint32_t state_rank() const {
    return static_cast<std::uint32_t>(topology ? topology->host : group.rank());
  }
  std::uint32_t state_workers() const {
    return static_cast<std::uint32_t>(topology ? topology->hosts : group.size());
  }
  State make_state(bool velocity) const {
    return State(state_tensors(), state_rank(), state_workers(), velocity);
  }
  void check_state() const {
    if (state.tensors() != state_tensors()) {
      throw Error(ErrorCode::invalid_argument, "exchange", "state",
                  "is not made of the tensors that this rank compresses",
                  "leave it out, or make it as the state() of another Exchange");
    }
    if (state.rank() == state_rank() && state.workers() == state_workers()) return;
    throw Error(ErrorCode::invalid_argument, "exchange", "state",
                fmt::format("is of rank {} of {}, this is {} of {}", state.rank(), state.workers(),
                            state_rank(), state_workers()));
  }

  /// Before anything is indexed by what the caller says.
  void check_gradients(std::span<const Gradient> gradients, std::size_t bucket) const {
    const std::vector<std::size_t>& tensors = buckets[bucket];
    auto next = tensors.begin();
    for (const Gradient& gradient : gradients) {
      next = std::find(next, tensors.end(), gradient.tensor);
      if (next == tensors.end()) {
        throw Error(ErrorCode::invalid_argument, "exchange",
                    fmt::format("tensor {}", gradient.tensor),
                    fmt::format("is not one of the {} of bucket {}, or not in increasing order",
                                tensors.size(), bucket));
      }
      ++next;
      check_size(gradient.tensor, gradient.values.size(), "gradient");
    }
  }
  void check_targets(std::span<const std::span<float>> targets) const {
    if (targets.size() != model.size()) {
      throw Error(ErrorCode::shape_mismatch, "exchange", "targets",
                  fmt::format("{} tensors, the model has {}", targets.size(), model.size()));
    }
    for (std::size_t t = 0; t < targets.size(); ++t) check_size(t, targets[t].size(), "target");
  }
  void check_size(std::size_t tensor, std::size_t size, const char* what) const {
    if (size == model[tensor].elements()) return;
    throw Error(
        ErrorCode::shape_mismatch, "exchange", fmt::format("'{}'", model[tensor].name),
        fmt::format("the {} has {} elements, the model {}", what, size, model[tensor].elements()));
  }

  /// The next bucket of the step. Throws before anything is sent.
  BucketRunner::Given take(std::span<const Gradient> gradients, const Compressor::Call& call) {
    if (failure) throw ended_earlier(*failure);
    if (submitted >= buckets.size()) {
      throw Error(ErrorCode::wrong_order, "exchange", fmt::format("step {}", state.step()),
                  fmt::format("all {} buckets are submitted", buckets.size()),
                  "call finish() and commit() before the next step");
    }
    check_gradients(gradients, submitted);
    BucketRunner::Given given{.bucket = submitted,
                              .gradients = {gradients.begin(), gradients.end()},
                              .call = call,
                              .stop = stop.load(),
                              .parameters = {}};
    if (submitted == 0) given.parameters = std::exchange(parameters, std::nullopt);
    ++submitted;
    return given;
  }

  /// Groups know nothing of steps; users want to know where to go back to.
  Error with_step(const Error& error) const {
    if (error.problem().find("step ") != std::string::npos) return error;
    return Error(error.code(), error.operation(), error.subject(),
                 fmt::format("{}, in step {}", error.problem(), state.step()), error.hint());
  }

  Collected collected(std::vector<exchange::Contents> all) const {
    Collected sum;
    sum.present.resize(model.size());
    sum.densely.resize(model.size());
    std::size_t sparse = 0;
    std::size_t dense = 0;
    std::size_t owner = 0;
    bool lengths_first = false;
    for (std::size_t b = 0; b < all.size(); ++b) {
      const exchange::Contents& one = all[b];
      sum.skipped |= options.skip_nonfinite && one.merged.nonfinite;
      sum.stop |= one.merged.stop;
      for (const Phase& phase : one.phases) add_phase(sum.phases, phase);
      sum.message_bytes += one.message_bytes;
      sum.moved = sum.moved + one.moved;
      sum.seconds.compress += one.seconds.compress;
      sum.seconds.encode += one.seconds.encode;
      sum.seconds.exchange += one.seconds.exchange;
      sum.seconds.statistics += one.seconds.statistics;
      sum.gradient_norm += one.gradient_squares;
      sum.residual_norm += one.residual_squares;
      (one.reselected ? owner : sparse) += one.sparse;
      dense += one.dense_tensors.size();
      for (const std::size_t t : one.dense_tensors) sum.densely[t] = true;
      lengths_first |= one.lengths_first;
      for (std::size_t i = 0; i < buckets[b].size(); ++i) {
        sum.present[buckets[b][i]] = one.merged.present[i];
      }
    }
    sum.gradient_norm = std::sqrt(sum.gradient_norm);
    sum.residual_norm = std::sqrt(sum.residual_norm);
    sum.choice = options.algorithm == Algorithm::automatic
                     ? fmt::format("allgather {}, dense {}", sparse, dense)
                     : fmt::format("{} {}", name_of(options.algorithm), sparse + dense + owner);
    if (options.reselect) sum.choice += fmt::format(", owner {}", owner);
    if (lengths_first) sum.choice += ", lengths first";
    sum.contents_->buckets = std::move(all);
    return sum;
  }

  /// Global momentum: of the sum that was applied, m/N goes back into each worker's residual. It
  /// takes part in the next step's selection there. Owners keep all of it (exchange/owners.cpp).
  void feed_back(const exchange::Contents& bucket, const std::vector<bool>& present) {
    const float m = compressor.options().feedback();
    if (m == 0.0f || bucket.reselected) return;
    const float share = m / static_cast<float>(state.workers());
    std::vector<std::span<float>> residuals(model.size());
    for (std::size_t t = 0; t < model.size(); ++t) {
      if (present[t]) residuals[t] = state.residual(t);
    }
    const std::vector<float> alphas(model.size(), share);
    for (std::size_t i = 0; i < bucket.messages.size(); ++i) {
      // Under hierarchical, messages come by host and then by the worker whose share it is.
      if (topology && static_cast<int>(i) % topology->local_size != topology->local_rank) continue;
      wire::add_some(bucket.messages[i].message, residuals, alphas);
    }
    const float* sum = bucket.dense_sum.data();
    for (const std::size_t t : bucket.dense_tensors) {
      for (float& v : residuals[t]) v += share * *sum++;
      if (residuals[t].empty()) sum += model[t].elements();
    }
  }

  void apply_over_senders(const exchange::Contents& bucket,
                          std::span<const std::span<float>> targets,
                          std::span<const float> alphas) const {
    std::vector<const CheckedMessage*> messages;
    for (const Received& received : bucket.messages) messages.push_back(&received.message);
    std::vector<bool> whole;
    for (std::size_t t = 0; t < model.size(); ++t) {
      const Load load = context.load_of(t);
      whole.push_back(load.entries == load.elements);
    }
    add_mean_of_senders(messages, targets, alphas, whole);
  }

  void abandon(const Error& cause, std::span<const Gradient> gradients,
               const Compressor::Call& call) noexcept {
    // The group is the other thread's until that is done.
    for (auto& bucket : pending) {
      if (bucket.valid()) bucket.wait();
    }
    pending.clear();
    submitted = 0;
    group.fail(cause);
    if (!failure) failure = cause;
    compressor.restore();
    runner.put_back();
    accumulate(gradients, call);
  }

  void accumulate(std::span<const Gradient> gradients, const Compressor::Call& call) noexcept {
    // Shares of a host's mean cannot be made of this worker's gradient.
    if (topology) return;
    for (const Gradient& gradient : gradients) {
      if (gradient.tensor >= model.size()) continue;
      if (compress::Internals::accumulated(compressor, gradient.tensor)) continue;
      try {
        std::vector<std::byte> scratch(compressor.bound({&gradient, 1}));
        compressor.compress({&gradient, 1}, scratch, call);
      } catch (const std::exception&) {
        // Not finite, say: then it does not belong there.
      }
    }
    compressor.restore();
  }
};

Exchange::Exchange(Group& group, std::vector<TensorSpec> model, CompressOptions compress,
                   ExchangeOptions options, State* state, Buckets buckets) {
  // Whatever is wrong here, the others are told: they wait in the handshake.
  try {
    impl_ = std::make_unique<Impl>(group, std::move(model), std::move(compress), std::move(options),
                                   state, std::move(buckets));
    handshake(group, describe(group, impl_->model, impl_->buckets, impl_->state,
                              impl_->compressor.options(), impl_->options));
    impl_->costs = impl_->find_costs();
  } catch (const std::exception& error) {
    group.fail(as_error(error));
    throw;
  }
}

Exchange::~Exchange() {
  if (!impl_ || impl_->submitted == 0) return;
  // The others are waiting for the rest of this step.
  abandon(Error(ErrorCode::wrong_order, "exchange", fmt::format("rank {}", impl_->group.rank()),
                fmt::format("gave up in the middle of step {}", impl_->state.step()),
                "look at what ended that rank"));
}

void Exchange::submit(std::span<const Gradient> gradients, const Compressor::Call& call) {
  Impl& my = *impl_;
  if (!my.driver) my.driver.emplace();
  my.pending.push_back(my.driver->submit([&my, given = my.take(gradients, call)] {
    try {
      return my.runner.run(given);
    } catch (const std::exception& error) {
      my.group.fail(as_error(error));  // at once: the buckets behind this one must not wait
      throw;
    }
  }));
}

std::size_t Exchange::submitted() const noexcept { return impl_->submitted; }

Collected Exchange::finish() {
  Impl& my = *impl_;
  const auto start = std::chrono::steady_clock::now();
  std::vector<exchange::Contents> all;
  try {
    if (my.submitted != my.buckets.size()) {
      throw Error(ErrorCode::wrong_order, "exchange", fmt::format("step {}", my.state.step()),
                  fmt::format("{} of {} buckets are submitted", my.submitted, my.buckets.size()),
                  "submit every bucket, those without gradients too");
    }
    for (auto& bucket : my.pending) all.push_back(bucket.get());
  } catch (const std::exception& exception) {
    const Error error = my.with_step(as_error(exception));
    abandon(error);
    throw Error(error);
  }
  my.pending.clear();
  my.submitted = 0;
  Collected sum = my.collected(std::move(all));
  sum.seconds.waiting =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return sum;
}

void Exchange::abandon(const Error& cause, std::span<const Gradient> gradients,
                       const Compressor::Call& call) noexcept {
  impl_->abandon(cause, gradients, call);
}

Collected Exchange::step(std::span<const Gradient> gradients,
                         std::span<const std::span<float>> targets, float alpha,
                         const Compressor::Call& call) {
  Impl& my = *impl_;
  Collected sum;
  try {
    my.check_targets(targets);  // before anything is sent, or others would apply this step
    std::vector<exchange::Contents> all;
    for (std::size_t b = 0; b < my.buckets.size(); ++b) {
      std::vector<Gradient> some(gradients.begin(), gradients.end());
      if (my.buckets.size() > 1) {
        std::erase_if(some, [&](const Gradient& g) {
          return !std::binary_search(my.buckets[b].begin(), my.buckets[b].end(), g.tensor);
        });
      }
      all.push_back(my.runner.run(my.take(some, call)));
    }
    my.submitted = 0;
    sum = my.collected(std::move(all));
    sum.seconds.waiting = sum.seconds.exchange;
    if (sum.skipped) return sum;
    apply(sum, targets, alpha);
  } catch (const std::exception& exception) {
    const Error error = my.with_step(as_error(exception));
    abandon(error);
    throw Error(error);
  }
  commit(sum, targets);
  return sum;
}

void Exchange::apply(const Collected& collected, std::span<const std::span<float>> targets,
                     float alpha) const {
  apply(collected, targets, std::vector<float>(targets.size(), alpha));
}

void Exchange::apply(const Collected& collected, std::span<const std::span<float>> targets,
                     std::span<const float> alphas) const {
  // Everything else was checked before.
  impl_->check_targets(targets);
  if (alphas.size() != targets.size()) {
    throw Error(ErrorCode::shape_mismatch, "exchange", "alphas",
                fmt::format("{} factors, the model has {} tensors", alphas.size(), targets.size()));
  }
  std::vector<std::span<float>> present(targets.begin(), targets.end());
  for (std::size_t t = 0; t < present.size(); ++t) {
    if (!collected.present[t]) present[t] = {};
  }
  for (const exchange::Contents& bucket : collected.contents_->buckets) {
    if (impl_->options.mean == Mean::senders) {
      impl_->apply_over_senders(bucket, present, alphas);
      continue;
    }
    for (std::size_t m = 0; m < bucket.messages.size(); ++m) {
      const CheckedMessage& message = bucket.messages[m].message;
      if (bucket.offsets.empty()) {
        wire::add_some(message, present, alphas);
        continue;
      }
      std::vector<std::span<float>> shares(targets.size());
      for (const FrameInfo& frame : message.frames()) {
        shares[frame.tensor] =
            targets[frame.tensor].subspan(bucket.offsets[m][frame.tensor], frame.elements);
      }
      wire::add_some(message, shares, alphas);
    }
    std::size_t at = 0;
    for (const std::size_t tensor : bucket.dense_tensors) {
      const float* const sum = bucket.dense_sum.data() + at;
      at += targets[tensor].size();
      for (std::size_t i = 0; i < present[tensor].size(); ++i) {
        present[tensor][i] += alphas[tensor] * sum[i];
      }
    }
  }
}

void Exchange::commit(const Collected& collected, std::span<const std::span<float>> targets) {
  Impl& my = *impl_;
  State& state = my.state;
  const bool masks = state.has_velocity() && my.compressor.options().masking;
  for (const exchange::Contents& bucket : collected.contents_->buckets) {
    bucket.changes.apply(state, masks);
    my.feed_back(bucket, collected.present);
    if (bucket.dense_errors.empty()) continue;
    std::size_t at = 0;
    for (const std::size_t tensor : bucket.dense_tensors) {
      for (float& v : state.residual(tensor)) v += bucket.dense_errors[at++];
    }
  }
  my.compressor.commit();
  // Last: whatever was written to tensors that no rank had a gradient of is undone.
  my.runner.put_back_absent(collected.present);
  const auto every = static_cast<std::uint64_t>(my.options.check_parameters_every);
  if (every == 0 || (my.compared && state.step() % every != 0)) return;
  my.check_targets(targets);
  my.parameters = hash_of(targets);
  my.compared = true;
}

void Exchange::request_stop() noexcept { impl_->stop = true; }

void Exchange::check_parameters(std::span<const std::span<float>> parameters) {
  try {
    impl_->check_targets(parameters);
    compare_parameters(impl_->group, parameters, impl_->state.step());
  } catch (const std::exception& exception) {
    const Error error = as_error(exception);
    impl_->group.fail(error);
    throw Error(error);
  }
}

State& Exchange::state() noexcept { return impl_->state; }
const State& Exchange::state() const noexcept { return impl_->state; }
std::span<const TensorStats> Exchange::stats() const noexcept { return impl_->compressor.stats(); }
double Exchange::clip_factor() const noexcept { return impl_->compressor.clip_factor(); }

const Costs& Exchange::costs() const noexcept { return impl_->costs; }

double Exchange::free_ratio(const FreeTime& time, double least) const {
  const Impl& my = *impl_;
  return exchange::free_ratio({.model = my.model,
                               .buckets = my.buckets,
                               .compress = my.compressor.options(),
                               .options = my.options,
                               .setup = {my.group.size(), my.options.dense_transport, my.costs}},
                              time, least);
}

void Exchange::raise_ratio(std::int64_t from_step, double ratio) {
  Impl& my = *impl_;
  if (my.submitted > 0) {
    throw Error(ErrorCode::wrong_order, "exchange", "ratio", "cannot change within a step",
                "call finish(), or abandon(), first");
  }
  if (my.compared && from_step <= static_cast<std::int64_t>(my.state.step())) {
    throw Error(ErrorCode::wrong_order, "exchange", fmt::format("step {}", from_step),
                "is too near: room for its messages is made already",
                fmt::format("change the ratio from step {} on", my.state.step() + 1));
  }
  my.compressor.change_schedule(my.compressor.options().schedule.raised(from_step, ratio));
}

double Exchange::norm(std::span<const Gradient> gradients) const {
  if (!impl_->topology) return impl_->compressor.norm(gradients);
  // The compressor knows shares of tensors only.
  double squares = 0.0;
  for (const Gradient& gradient : gradients) {
    for (const float x : gradient.values) squares += static_cast<double>(x) * x;
  }
  return std::sqrt(squares);
}

}  // namespace dgc
