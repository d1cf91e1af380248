// A step over a Group: collect (an algorithm moves and checks what all ranks selected), apply,
// commit. Parameters and state change only after everything has arrived and been checked; whatever
// fails before, the others are told and u and v get back what was selected (docs/exchange.md).
#include "dgc/exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "dgc/version.h"
#include "exchange/choose.h"
#include "exchange/context.h"
#include "exchange/link_costs.h"
#include "exchange/options.h"

namespace dgc {

Bucket::Bucket() : impl(std::make_unique<Impl>()) {}
Bucket::Bucket(Bucket&&) noexcept = default;
Bucket& Bucket::operator=(Bucket&&) noexcept = default;
Bucket::~Bucket() = default;
const std::vector<Phase>& Bucket::phases() const noexcept { return impl->phases; }
std::uint64_t Bucket::message_bytes() const noexcept { return impl->message_bytes; }
std::string Bucket::choice() const { return impl->choice; }
const Bucket::Seconds& Bucket::seconds() const noexcept { return impl->seconds; }

namespace exchange {

Load Context::load_of(std::size_t tensor) const {
  const TensorSpec& spec = state.tensors()[tensor];
  const std::uint64_t elements = spec.elements();
  if (spec.dense) return {elements, elements};
  const double ratio =
      compressor.options().schedule.ratio_at(static_cast<std::int64_t>(state.step()));
  return {elements, entries_at(ratio, elements)};
}

void Context::check_message(std::span<const std::byte> message, int sender, int peer_rank,
                            const char* phase, std::span<const Gradient> tensors) const {
  const std::string peer = fmt::format("rank {}", peer_rank);
  MessageInfo info;
  try {
    info = inspect_message(message);
  } catch (const Error& error) {
    throw Error(error.code(), phase, peer,
                fmt::format("sent a bad message at step {}: {}: {}", state.step(), error.subject(),
                            error.problem()),
                error.hint());
  }
  const auto mismatch = [&](const char* what, std::uint64_t theirs, std::uint64_t ours) {
    throw Error(ErrorCode::configuration_mismatch, phase, peer,
                fmt::format("sent a message with {} {}, {} expected", what, theirs, ours),
                "nothing was applied");
  };
  if (info.header.step != state.step()) mismatch("step", info.header.step, state.step());
  if (info.header.schema != compressor.options().schema) {
    mismatch("schema", info.header.schema, compressor.options().schema);
  }
  if (info.header.sender != sender) {
    mismatch("sender", info.header.sender, static_cast<std::uint64_t>(sender));
  }
  auto next = tensors.begin();
  for (const FrameInfo& frame : info.frames) {
    next = std::find_if(next, tensors.end(),
                        [&](const Gradient& g) { return g.tensor == frame.tensor; });
    if (next == tensors.end()) {
      throw Error(ErrorCode::unknown_tensor, phase, peer,
                  fmt::format("sent tensor {}, which is not of this bucket", frame.tensor),
                  "nothing was applied");
    }
    if (frame.elements != next->values.size())
      mismatch("tensor size", frame.elements, next->values.size());
  }
}

PhaseMeter::PhaseMeter(const Group& group, Bucket::Impl& bucket, std::string name)
    : group_(group), bucket_(bucket), name_(std::move(name)), before_(group.traffic()) {}

PhaseMeter::~PhaseMeter() {
  const Traffic moved = group_.traffic() - before_;
  for (Phase& phase : bucket_.phases) {
    if (phase.name != name_) continue;
    phase.traffic = {phase.traffic.bytes_sent + moved.bytes_sent,
                     phase.traffic.bytes_received + moved.bytes_received,
                     phase.traffic.messages_sent + moved.messages_sent};
    return;
  }
  bucket_.phases.push_back({std::move(name_), moved});
}

}  // namespace exchange

namespace {

using namespace exchange;

/// Everything that has to be the same on all ranks, one fact a line.
std::string describe(const Group& group, const std::vector<TensorSpec>& model, const State& state,
                     const CompressOptions& compress, const ExchangeOptions& options) {
  std::string text = fmt::format("dgc exchange protocol 1\nworld size {}\n", group.size());
  for (const TensorSpec& tensor : model) {
    text += fmt::format("tensor {} {} {}\n", tensor.name, tensor.shape_text(),
                        tensor.dense ? "dense" : "sparse");
  }
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

}  // namespace

struct Exchange::Impl {
  Group& group;
  std::vector<TensorSpec> model;
  State& state;
  Compressor compressor;
  ExchangeOptions options;
  std::optional<Topology> topology;
  Costs costs;  // for `automatic`
  Context context{group, model, state, compressor, options};
  bool compared = false;  // parameters of all ranks, once at least

  Impl(Group& g, std::vector<TensorSpec> m, State& s, CompressOptions c, ExchangeOptions o)
      : group(g),
        model(std::move(m)),
        state(s),
        compressor(s, std::move(c)),
        options(std::move(o)) {}

  void check_state(const std::vector<TensorSpec>& expected, int rank, int workers) const {
    if (state.tensors() != expected) {
      throw Error(
          ErrorCode::invalid_argument, "exchange", "state", "is not made of the model's tensors",
          options.algorithm == Algorithm::hierarchical ? "make it of share_of(model, topology)"
                                                       : "make it of the model");
    }
    if (state.rank() != static_cast<std::uint32_t>(rank) ||
        state.workers() != static_cast<std::uint32_t>(workers)) {
      throw Error(ErrorCode::invalid_argument, "exchange", "state",
                  fmt::format("is of rank {} of {}, this is {} of {}", state.rank(),
                              state.workers(), rank, workers));
    }
  }

  Costs find_costs() const {
    if (options.costs) return *options.costs;
    if (options.link) return costs_over(*options.link);
    if (options.algorithm != Algorithm::automatic) return {};
    std::uint64_t elements = 0;
    for (const TensorSpec& tensor : model) elements += tensor.elements();
    return measure_costs(group, {compressor.options(), options.dense_transport, elements});
  }

  /// What `automatic` does; the same on every rank.
  Choice choose(std::span<const Gradient> gradients) const {
    const CompressOptions& c = compressor.options();
    std::vector<Item> items;
    for (const Gradient& gradient : gradients) {
      const Load load = context.load_of(gradient.tensor);
      items.push_back({load, load.entries == load.elements ? c.dense_values : c.values});
    }
    const CostSetup setup{group.size(), options.dense_transport, costs};
    return exchange::choose(setup, items, options.reselect);
  }

  /// Before anything is indexed by what the caller says.
  void check_gradients(std::span<const Gradient> gradients) const {
    std::size_t next = 0;
    for (const Gradient& gradient : gradients) {
      if (gradient.tensor >= model.size() || gradient.tensor < next) {
        throw Error(
            ErrorCode::invalid_argument, "exchange", fmt::format("tensor {}", gradient.tensor),
            fmt::format("is not one of the model's {}, or not in increasing order", model.size()));
      }
      check_size(gradient.tensor, gradient.values.size(), "gradient");
      next = gradient.tensor + 1;
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

  void collect(std::span<const Gradient> gradients, const Compressor::Call& call,
               std::span<const std::uint64_t> next, Bucket::Impl& bucket) {
    check_gradients(gradients);
    switch (options.algorithm) {
      case Algorithm::allgather:
        run_allgather(context, gradients, call, next, bucket);
        break;
      case Algorithm::owner:
        run_owner(context, gradients, call, bucket);
        break;
      case Algorithm::dense:
        run_dense(context, gradients, call, bucket);
        break;
      case Algorithm::hierarchical:
        run_hierarchical(context, *topology, gradients, call, bucket);
        break;
      case Algorithm::automatic: {
        const Choice choice = choose(gradients);
        if (choice.owner) {
          run_owner(context, gradients, call, bucket);
          bucket.choice = fmt::format("owner {}", gradients.size());
          return;
        }
        std::vector<Gradient> sparse;
        std::vector<Gradient> dense;
        for (std::size_t i = 0; i < gradients.size(); ++i) {
          (choice.dense[i] ? dense : sparse).push_back(gradients[i]);
        }
        // Clipping is over all of them, so that its norm cannot be left to the parts.
        Compressor::Call both = call;
        if (!both.norm && compressor.options().clip_norm > 0.0)
          both.norm = compressor.norm(gradients);
        if (!sparse.empty()) run_allgather(context, sparse, both, next, bucket);
        if (!dense.empty()) run_dense(context, dense, both, bucket);
        bucket.choice = fmt::format("allgather {}, dense {}", sparse.size(), dense.size());
        return;
      }
    }
    bucket.choice = fmt::format("{} {}", name_of(options.algorithm), gradients.size());
  }
};

Exchange::Exchange(Group& group, std::vector<TensorSpec> model, State& state,
                   CompressOptions compress, ExchangeOptions options) {
  // Whatever is wrong here, the others are told: they wait in the handshake.
  try {
    check_options(options);
    const std::string description = describe(group, model, state, compress, options);
    impl_ = std::make_unique<Impl>(group, std::move(model), state, std::move(compress),
                                   std::move(options));
    handshake(group, description);
    if (impl_->options.algorithm == Algorithm::hierarchical) {
      impl_->topology = find_topology(group, impl_->options.host);
      impl_->check_state(share_of(impl_->model, *impl_->topology), impl_->topology->host,
                         impl_->topology->hosts);
    } else {
      impl_->check_state(impl_->model, group.rank(), group.size());
    }
    impl_->costs = impl_->find_costs();
  } catch (const std::exception& error) {
    group.fail(as_error(error));
    throw;
  }
}

Exchange::~Exchange() = default;

std::uint64_t Exchange::swap_bound(std::span<const std::size_t> tensors) const {
  const Algorithm algorithm = impl_->options.algorithm;
  if (algorithm != Algorithm::allgather && algorithm != Algorithm::automatic) return 0;
  std::vector<Gradient> gradients;
  for (const std::size_t t : tensors) {
    if (t >= impl_->state.tensors().size()) {
      throw Error(ErrorCode::invalid_argument, "swap_bound", fmt::format("tensor {}", t),
                  fmt::format("is not one of the model's {}", impl_->model.size()));
    }
    gradients.push_back({t, std::as_const(impl_->state).residual(t)});  // for its size
  }
  return impl_->compressor.bound(gradients);
}

Compressor& Exchange::compressor() noexcept { return impl_->compressor; }
const Costs& Exchange::costs() const noexcept { return impl_->costs; }

Bucket Exchange::collect(std::span<const Gradient> gradients, const Compressor::Call& call,
                         std::span<const std::uint64_t> next) {
  Bucket bucket;
  const auto start = std::chrono::steady_clock::now();
  const Compressor::Seconds before = impl_->compressor.seconds();
  try {
    impl_->collect(gradients, call, next, *bucket.impl);
  } catch (const std::exception& exception) {
    // The group is dead and the step cannot be finished: nothing selected may stay out of u and v.
    const Error error = as_error(exception);
    impl_->group.fail(error);
    restore();
    // Groups know nothing of steps; users want to know where to go back to.
    if (error.problem().find("step ") != std::string::npos) throw Error(error);
    throw Error(error.code(), error.operation(), error.subject(),
                fmt::format("{}, in step {}", error.problem(), impl_->state.step()), error.hint());
  }
  const Compressor::Seconds after = impl_->compressor.seconds();
  Bucket::Seconds& seconds = bucket.impl->seconds;
  seconds.compress = after.select - before.select;
  seconds.encode = after.encode - before.encode;
  const std::chrono::duration<double> total = std::chrono::steady_clock::now() - start;
  seconds.exchange = total.count() - seconds.compress - seconds.encode;
  return bucket;
}

void Exchange::apply(const Bucket& bucket, std::span<const std::span<float>> targets,
                     float alpha) const {
  apply(bucket, targets, std::vector<float>(targets.size(), alpha));
}

void Exchange::apply(const Bucket& bucket, std::span<const std::span<float>> targets,
                     std::span<const float> alphas) const {
  const Bucket::Impl& contents = *bucket.impl;
  // Everything else was validated by collect.
  impl_->check_targets(targets);
  if (alphas.size() != targets.size()) {
    throw Error(ErrorCode::shape_mismatch, "exchange", "alphas",
                fmt::format("{} factors, the model has {} tensors", alphas.size(), targets.size()));
  }
  for (std::size_t m = 0; m < contents.messages.size(); ++m) {
    if (contents.offsets.empty()) {
      decode_add(contents.messages[m], targets, alphas);
      continue;
    }
    std::vector<std::span<float>> shares;
    for (const FrameInfo& frame : inspect_message(contents.messages[m]).frames) {
      shares.resize(frame.tensor + 1);
      shares[frame.tensor] =
          targets[frame.tensor].subspan(contents.offsets[m][frame.tensor], frame.elements);
    }
    decode_add(contents.messages[m], shares, alphas.first(shares.size()));
  }
  std::size_t at = 0;
  for (const std::size_t tensor : contents.dense_tensors) {
    for (float& x : targets[tensor]) x += alphas[tensor] * contents.dense_sum[at++];
  }
}

void Exchange::commit(std::span<Bucket> buckets, std::span<const std::span<float>> targets) {
  State& state = impl_->state;
  for (const Bucket& bucket : buckets) {
    for (const ResidualRange& range : bucket.impl->ranges) {
      std::copy(range.values.begin(), range.values.end(),
                state.residual(range.tensor).subspan(range.begin).begin());
      if (!state.has_velocity() || !impl_->compressor.options().masking) continue;
      for (const std::uint32_t index : range.masked) state.velocity(range.tensor)[index] = 0.0f;
    }
    for (const ResidualError& error : bucket.impl->errors) {
      state.residual(error.tensor)[error.index] += error.value;
    }
    if (bucket.impl->dense_errors.empty()) continue;
    std::size_t at = 0;
    for (const std::size_t tensor : bucket.impl->dense_tensors) {
      for (float& v : state.residual(tensor)) v += bucket.impl->dense_errors[at++];
    }
  }
  impl_->compressor.commit();
  const auto every = static_cast<std::uint64_t>(impl_->options.check_parameters_every);
  if (every == 0 || (impl_->compared && state.step() % every != 0)) return;
  try {
    check_parameters(targets);
  } catch (const Error& error) {
    throw Error(error.code(), error.operation(), error.subject(),
                fmt::format("{}; step {} itself is committed", error.problem(), state.step() - 1),
                error.hint());
  }
}

void Exchange::check_parameters(std::span<const std::span<float>> parameters) {
  try {
    impl_->check_targets(parameters);
    compare_parameters(impl_->group, parameters, impl_->state.step());
    impl_->compared = true;
  } catch (const std::exception& exception) {
    const Error error = as_error(exception);
    impl_->group.fail(error);
    throw Error(error);
  }
}

void Exchange::restore() noexcept { impl_->compressor.restore(); }

Bucket Exchange::step(std::span<const Gradient> gradients,
                      std::span<const std::span<float>> targets, float alpha,
                      const Compressor::Call& call) {
  Bucket bucket;
  try {
    impl_->check_targets(targets);  // before anything is sent, or others would apply this step
    impl_->check_gradients(gradients);
    std::vector<std::size_t> tensors;
    for (const Gradient& gradient : gradients) tensors.push_back(gradient.tensor);
    // The next steps have the same, where the algorithm swaps messages.
    const std::vector<std::uint64_t> next(2, swap_bound(tensors));
    bucket = collect(gradients, call, std::span(next).first(next[0] > 0 ? 2 : 0));
    apply(bucket, targets, alpha);
  } catch (const std::exception& error) {
    impl_->group.fail(as_error(error));
    restore();
    throw;
  }
  commit({&bucket, 1}, targets);
  return bucket;
}

}  // namespace dgc
