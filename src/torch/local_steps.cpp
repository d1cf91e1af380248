// dgc::LocalSteps: options and parameters checked, ranks compared, the exchange made. The round
// itself is in round.cpp.
#include "dgc/local_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "dgc/collectives.h"
#include "engine/ended.h"
#include "exchange/context.h"
#include "torch/bucket_plan.h"
#include "torch/describe.h"
#include "torch/local_steps_impl.h"

namespace dgc {
namespace {

constexpr const char* kOwner = "LocalSteps";

[[noreturn]] void refuse(std::string subject, std::string problem, std::string hint = {}) {
  throw Error(ErrorCode::invalid_argument, kOwner, std::move(subject), std::move(problem),
              std::move(hint));
}

bool is_rate(double value) { return value >= 0.0 && std::isfinite(value); }

const char* name_of(Send send) {
  return send == Send::sparse ? "sparse" : send == Send::dense ? "dense" : "automatic";
}

}  // namespace

LocalStepsOptions LocalStepsOptions::diloco(int local_steps) {
  LocalStepsOptions options(local_steps);
  return options.schedule(Schedule(1.0))
      .values(ValueType::fp32)
      .dense_values(ValueType::fp32)
      .residual_decay(1.0)
      .algorithm(Algorithm::dense)
      .outer_lr(0.7)
      .outer_momentum(0.9);
}

LocalSteps::Impl::Impl(Group& the_group, const Named& named, torch::optim::Optimizer& the_inner,
                       LocalStepsOptions the_options)
    : group(the_group),
      inner(the_inner),
      options(std::move(the_options)),
      outer_lr(options.outer_lr()) {
  // Whatever is wrong here, the others are told: they wait in the handshake.
  try {
    check_options();
    collect(named);
    make_exchange();
    broadcast_parameters();
  } catch (const std::exception& error) {
    group.fail(as_error(error));
    throw;
  }
}

void LocalSteps::Impl::check_options() const {
  if (options.local_steps() < 1) {
    refuse("local_steps", fmt::format("{} is not 1 or more", options.local_steps()),
           "30, for example");
  }
  if (!is_rate(options.outer_lr())) {
    refuse("outer_lr", fmt::format("{} is not 0 or more", options.outer_lr()), "1, for example");
  }
  if (!(options.outer_momentum() >= 0.0 && options.outer_momentum() < 1.0)) {
    refuse("outer_momentum", fmt::format("{} is not in [0, 1)", options.outer_momentum()));
  }
  if (options.bucket_bytes() < 1) {
    refuse("bucket_bytes", fmt::format("{} is not 1 or more", options.bucket_bytes()));
  }
  const Schedule& schedule = options.schedule();
  const bool whole =
      schedule.ratio_at(0) == 1.0 && schedule.ratio_at(schedule.warmup_steps()) == 1.0;
  if (options.outer_momentum() > 0.0 && !whole) {
    refuse("outer_momentum",
           fmt::format("{} needs rounds that send everything", options.outer_momentum()),
           "set schedule(Schedule(1.0)), or leave it 0: residual_decay is in its place");
  }
  if (options.compress.momentum != 0.0f) {
    refuse("compress.momentum", fmt::format("{} is not 0", options.compress.momentum),
           "momentum belongs to the inner optimizer; see also outer_momentum");
  }
  if (options.compress.clip_norm != 0.0) {
    refuse("compress.clip_norm", fmt::format("{} is not 0", options.compress.clip_norm),
           "clip gradients before the inner optimizer's step");
  }
}

void LocalSteps::Impl::collect(const Named& named) {
  const SgdGroup all{named, SgdGroupOptions(0.0).send(options.send()), {}};
  sgd::check_parameters({&all, 1}, kOwner);
  parameters = sgd::collect_parameters({&all, 1});
  std::map<const void*, std::size_t> places;
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    places[parameters[p].tensor.unsafeGetTensorImpl()] = p;
    parameters[p].owner = kOwner;
    parameters[p].master = torch::Tensor();  // theta0 is kept here for all
  }
  std::vector<bool> has(parameters.size());
  for (std::size_t g = 0; g < inner.param_groups().size(); ++g) {
    const auto& tensors = inner.param_groups()[g].params();
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const auto found = places.find(tensors[i].unsafeGetTensorImpl());
      if (found == places.end()) {
        refuse(fmt::format("parameter {} of group {} of the inner optimizer", i, g),
               "is not one of the model's", "make the optimizer of this model's parameters");
      }
      parameters[found->second].group = g;
      has[found->second] = true;
    }
  }
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    sgd::Parameter& parameter = parameters[p];
    if (!has[p] && !parameter.frozen) {
      parameter.frozen = true;
      parameter.because = "the inner optimizer does not have it";
    }
    if (parameter.frozen) continue;
    trained.push_back(p);
    elements += static_cast<std::uint64_t>(parameter.elements);
    const auto size = static_cast<std::size_t>(parameter.elements);
    const bool direct =
        parameter.tensor.scalar_type() == torch::kFloat && parameter.tensor.is_contiguous();
    anchors.emplace_back(size);
    apart.emplace_back(direct ? 0 : size);
    if (options.outer_momentum() > 0.0) momentum.emplace_back(size, 0.0f);
  }
  if (trained.empty()) refuse("parameters", "there is none to train", "see requires_grad");
}

std::string LocalSteps::Impl::describe() const {
  std::string text = fmt::format(
      "dgc local steps protocol 1\nlocal steps {}\nouter lr {}\nouter momentum {}\nsend {}\n"
      "bucket bytes {}\n",
      options.local_steps(), options.outer_lr(), options.outer_momentum(), name_of(options.send()),
      options.bucket_bytes());
  for (const sgd::Parameter& p : parameters) {
    text += fmt::format("{} {} {} of type {}\n", p.frozen ? "frozen" : "parameter", p.name,
                        p.spec().shape_text(), torch::toString(p.tensor.scalar_type()));
  }
  return text;
}

void LocalSteps::Impl::make_exchange() {
  exchange::handshake(group, describe());
  std::vector<TensorSpec> model;
  std::vector<std::uint64_t> bytes;
  for (std::size_t t = 0; t < trained.size(); ++t) {
    model.push_back(parameter(t).spec());
    bytes.push_back(model.back().elements() * sizeof(float));
  }
  plan = sgd::plan_buckets(bytes, static_cast<std::uint64_t>(options.bucket_bytes()));
  exchange.emplace(group, model, options.compress, options.exchange, nullptr, plan);
}

void LocalSteps::Impl::broadcast_parameters() {
  const torch::NoGradGuard no_grad;
  for (const sgd::Parameter& p : parameters) {
    if (p.frozen) sgd::broadcast_tensor(group, p.tensor);
  }
  for (std::size_t t = 0; t < trained.size(); ++t) {
    const torch::Tensor values = sgd::as_contiguous_float(parameter(t).tensor);
    std::copy_n(values.data_ptr<float>(), values.numel(), anchors[t].begin());
    broadcast(group, std::as_writable_bytes(std::span(anchors[t])), 0);
    publish(t);
  }
}

void LocalSteps::Impl::require_round(const char* operation) const {
  if (failure) throw ended_earlier(*failure);
  if (local_step == 0) return;
  throw Error(ErrorCode::wrong_order, operation, kOwner,
              fmt::format("{} local steps were made since the last round", local_step),
              "call it where step() has returned true, or call synchronize() first");
}

LocalSteps::LocalSteps(Group& group, torch::nn::Module& model, torch::optim::Optimizer& inner,
                       LocalStepsOptions options)
    : LocalSteps(group, model.named_parameters(), inner, std::move(options)) {
  add_buffers(model.named_buffers());
}

LocalSteps::LocalSteps(Group& group,
                       const torch::OrderedDict<std::string, torch::Tensor>& parameters,
                       torch::optim::Optimizer& inner, LocalStepsOptions options)
    : impl_(std::make_unique<Impl>(group, parameters, inner, std::move(options))) {}

LocalSteps::~LocalSteps() = default;

bool LocalSteps::step(const LossClosure& closure) {
  Impl& my = *impl_;
  if (my.failure) throw ended_earlier(*my.failure);
  my.inner.step(closure);
  if (++my.local_step < my.options.local_steps()) return false;
  my.round();
  return true;
}

void LocalSteps::synchronize() {
  if (impl_->failure) throw ended_earlier(*impl_->failure);
  impl_->round();
}

int LocalSteps::local_step() const noexcept { return impl_->local_step; }
std::uint64_t LocalSteps::rounds() const noexcept { return impl_->exchange->state().step(); }

void LocalSteps::set_outer_lr(double lr) {
  if (!is_rate(lr)) refuse("outer_lr", fmt::format("{} is not 0 or more", lr), "1, for example");
  impl_->outer_lr = lr;
}
double LocalSteps::outer_lr() const noexcept { return impl_->outer_lr; }

void LocalSteps::add_buffers(const torch::OrderedDict<std::string, torch::Tensor>& buffers) {
  impl_->buffers.add(buffers, impl_->parameters);
}
void LocalSteps::sync_buffers() { impl_->buffers.synchronize(); }

void LocalSteps::broadcast_parameters() {
  impl_->require_round("broadcast_parameters");
  impl_->broadcast_parameters();
}

void LocalSteps::check_parameters() {
  impl_->require_round("check_parameters");
  impl_->exchange->check_parameters(impl_->anchor_spans());
}

void LocalSteps::request_stop() noexcept { impl_->exchange->request_stop(); }
bool LocalSteps::stop_requested() const noexcept { return impl_->stop; }

void LocalSteps::abandon(const Error& cause) noexcept {
  if (!impl_->failure) impl_->give_up(cause, 0);
}

const StepStats& LocalSteps::stats() const noexcept { return impl_->stats; }
std::span<const TensorStats> LocalSteps::tensor_stats() const noexcept {
  return impl_->exchange->stats();
}

SgdReport LocalSteps::report() const {
  const Impl& my = *impl_;
  SgdReport report =
      sgd::describe_tensors(my.parameters, my.plan, *my.exchange, my.options.compress);
  report.overlap = "off: rounds come between local steps";
  report.algorithm = dgc::name_of(my.options.algorithm());
  return report;
}

const LocalStepsOptions& LocalSteps::options() const noexcept { return impl_->options; }
const State& LocalSteps::state_of_rank() const noexcept { return impl_->exchange->state(); }
const Costs& LocalSteps::costs() const noexcept { return impl_->exchange->costs(); }
torch::optim::Optimizer& LocalSteps::inner() noexcept { return impl_->inner; }
Group& LocalSteps::group() noexcept { return impl_->group; }

}  // namespace dgc
