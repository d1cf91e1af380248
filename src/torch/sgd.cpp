// dgc::Sgd: options and parameters checked, ranks compared, the exchange and its pipeline made. The
// step itself is in step.cpp, the way of gradients in pipeline.cpp.
#include "dgc/sgd.h"

#include <fmt/format.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>

#include "dgc/collectives.h"
#include "exchange/context.h"
#include "torch/agent_store.h"
#include "torch/bucket_plan.h"
#include "torch/sgd_impl.h"

namespace dgc {
namespace {

// Here, because a program that has libtorch and dgc has this file.
[[maybe_unused]] const bool knows_agent_store = detail::know_agent_store();

[[noreturn]] void refuse(std::string subject, std::string problem, std::string hint = {}) {
  throw Error(ErrorCode::invalid_argument, "Sgd", std::move(subject), std::move(problem),
              std::move(hint));
}

/// Checks them too: libtorch's own errors have no names, and the other ranks would not be told.
std::vector<torch::optim::OptimizerParamGroup> param_groups_of(Group& group,
                                                               std::span<const SgdGroup> groups) {
  try {
    sgd::check_parameters(groups);
  } catch (const Error& error) {
    group.fail(error);
    throw;
  }
  std::vector<torch::optim::OptimizerParamGroup> all;
  for (const SgdGroup& g : groups) all.emplace_back(g.parameters.values());
  return all;
}

SgdGroupOptions defaults_of(const SgdOptions& options) {
  return SgdGroupOptions(options.lr()).weight_decay(options.weight_decay());
}

std::vector<SgdGroup> numbered(const std::vector<torch::Tensor>& parameters,
                               const SgdOptions& options) {
  torch::OrderedDict<std::string, torch::Tensor> named;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    named.insert(std::to_string(i), parameters[i]);
  }
  return {{std::move(named), defaults_of(options)}};
}

}  // namespace

Sgd::Impl::Impl(Group& the_group, std::span<const SgdGroup> groups, SgdOptions the_options,
                std::vector<torch::optim::OptimizerParamGroup>& the_param_groups)
    : group(the_group), options(std::move(the_options)), param_groups(the_param_groups) {
  // Not earlier: the constructor of libtorch 2's Optimizer puts the defaults in their place, unless
  // they are of a type of its own.
  for (std::size_t g = 0; g < groups.size(); ++g) {
    param_groups[g].set_options(std::make_unique<SgdGroupOptions>(groups[g].options));
  }
  // Whatever is wrong here, the others are told: they wait in the handshake.
  try {
    check_options();
    parameters = sgd::collect_parameters(groups);
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      if (parameters[p].frozen) continue;
      trained.push_back(p);
      elements += static_cast<std::uint64_t>(parameters[p].elements);
    }
    if (trained.empty()) refuse("parameters", "there is none to train", "see requires_grad");
    for (const auto& g : param_groups) given += g.params().size();
    decay.resize(trained.size());
    make_exchange();
    broadcast_parameters();
  } catch (const std::exception& error) {
    group.fail(as_error(error));
    throw;
  }
}

void Sgd::Impl::check_options() const {
  const auto at_least = [](const char* name, double value, double least) {
    if (!(value >= least) || !std::isfinite(value)) {
      refuse(name, fmt::format("{} is not {} or more", value, least));
    }
  };
  at_least("lr", options.lr(), 0.0);
  at_least("weight_decay", options.weight_decay(), 0.0);
  at_least("bucket_bytes", static_cast<double>(options.bucket_bytes()), 1.0);
  at_least("accumulation_steps", options.accumulation_steps(), 1.0);
  at_least("buffers_every", options.buffers_every(), 0.0);
  if (!(options.loss_scale() > 0.0) || !std::isfinite(options.loss_scale())) {
    refuse("loss_scale", fmt::format("{} is not a positive number", options.loss_scale()));
  }
  if (options.nesterov() && options.momentum() == 0.0f) {
    refuse("nesterov", "needs a momentum", "set momentum, 0.9 for example");
  }
  for (std::size_t g = 0; g < param_groups.size(); ++g) {
    const auto& of_group = static_cast<const SgdGroupOptions&>(param_groups[g].options());
    at_least(fmt::format("lr of group {}", g).c_str(), of_group.lr(), 0.0);
    at_least(fmt::format("weight_decay of group {}", g).c_str(), of_group.weight_decay(), 0.0);
  }
}

std::string Sgd::Impl::no_overlap() const {
  if (!options.overlap()) return "asked for";
  if (options.clip_norm() > 0.0) return "clipping needs the norm of all gradients first";
  if (options.nonfinite() == NonFinite::skip) {
    return "steps with infinite gradients are skipped, which is known after backward only";
  }
  return {};
}

std::string Sgd::Impl::describe() const {
  std::string text = fmt::format(
      "dgc optimizer protocol 1\nbucket bytes {} overlap {} buffers every {}\nskips nonfinite {}\n"
      "momentum {} nesterov {} corrected {}\n",
      options.bucket_bytes(), no_overlap().empty(), options.buffers_every(),
      options.nonfinite() == NonFinite::skip, options.momentum(), options.nesterov(),
      name_of(options.momentum_correction()));
  for (std::size_t t = 0; t < trained.size(); ++t) {
    const SgdGroupOptions& of_group = group_of(t);
    text += fmt::format("parameter {} of type {} lr {} weight decay {}\n", parameter(t).name,
                        torch::toString(parameter(t).tensor.scalar_type()), of_group.lr(),
                        of_group.weight_decay());
  }
  for (const sgd::Parameter& p : parameters) {
    if (!p.frozen) continue;
    text += fmt::format("frozen {} {} of type {}\n", p.name, p.spec().shape_text(),
                        torch::toString(p.tensor.scalar_type()));
  }
  return text;
}

void Sgd::Impl::require_idle(const char* operation) const {
  if (!pipeline->under_way()) return;
  throw Error(ErrorCode::wrong_order, operation, "optimizer",
              "a step is under way: backward() was called and step() was not",
              "call step() or zero_grad() first");
}

void Sgd::Impl::make_exchange() {
  std::vector<TensorSpec> model;
  std::vector<torch::Tensor> tensors;
  std::vector<std::string> names;
  std::vector<std::uint64_t> bytes;
  for (std::size_t t = 0; t < trained.size(); ++t) {
    model.push_back(parameter(t).spec());
    tensors.push_back(parameter(t).tensor);
    names.push_back(parameter(t).name);
    bytes.push_back(model.back().elements() * sizeof(float));
  }
  exchange::handshake(group, describe());

  const bool overlap = no_overlap().empty();
  plan = sgd::plan_buckets(
      bytes, overlap ? static_cast<std::uint64_t>(options.bucket_bytes()) : ~std::uint64_t{0} >> 1);
  if (plan.empty()) plan.emplace_back();  // ranks meet, also where nothing is trained
  const bool skip = options.nonfinite() == NonFinite::skip;
  ExchangeOptions exchanging = options.exchange;
  exchanging.skip_nonfinite = skip;
  exchange.emplace(group, model, options.compress, std::move(exchanging), nullptr, plan);
  pipeline.emplace(*exchange, std::move(tensors), std::move(names), plan,
                   sgd::PipelineOptions{.overlap = overlap,
                                        .measure = skip || options.clip_norm() > 0.0,
                                        .accumulation_steps = options.accumulation_steps()});
  pipeline->loss_scale = options.loss_scale();
}

const SgdGroupOptions& Sgd::Impl::group_of(std::size_t tensor) const {
  return static_cast<const SgdGroupOptions&>(param_groups[parameter(tensor).group].options());
}

void Sgd::Impl::broadcast_parameters() {
  for (sgd::Parameter& parameter : parameters) {
    if (parameter.frozen) {
      sgd::broadcast_tensor(group, parameter.tensor);
      continue;
    }
    parameter.reread();
    broadcast(group, std::as_writable_bytes(parameter.values()), 0);
    parameter.publish();
  }
}

Sgd::Sgd(Group& group, torch::nn::Module& model, SgdOptions options)
    : Sgd(group, {{model.named_parameters(), defaults_of(options)}}, options) {
  add_buffers(model.named_buffers());
}

void Sgd::add_buffers(const torch::OrderedDict<std::string, torch::Tensor>& buffers) {
  impl_->require_idle("add_buffers");
  impl_->buffers.add(buffers, impl_->parameters);
}

void Sgd::sync_buffers() {
  impl_->require_idle("sync_buffers");
  impl_->buffers.synchronize();
}

Sgd::Sgd(Group& group, std::vector<torch::Tensor> parameters, SgdOptions options)
    : Sgd(group, numbered(parameters, options), options) {}

Sgd::Sgd(Group& group, std::vector<SgdGroup> groups, SgdOptions options)
    : Optimizer(param_groups_of(group, groups),
                std::make_unique<SgdGroupOptions>(defaults_of(options))),
      impl_(std::make_unique<Impl>(group, groups, std::move(options), param_groups_)) {}

Sgd::~Sgd() = default;

torch::Tensor Sgd::step(LossClosure closure) {
  torch::Tensor loss;
  if (closure) {
    const torch::AutoGradMode enable(true);
    loss = closure();
  }
  const torch::NoGradGuard no_grad;
  impl_->step();
  return loss;
}

void Sgd::zero_grad(bool set_to_none) {
  for (const sgd::Parameter& parameter : impl_->parameters) {
    torch::Tensor& gradient = parameter.tensor.mutable_grad();
    if (!gradient.defined()) continue;
    if (set_to_none) {
      gradient.reset();
    } else {
      gradient.detach_();
      gradient.zero_();
    }
  }
  // A backward() whose gradients are thrown away does not count. What was sent does.
  if (!impl_->pipeline->sent()) impl_->pipeline->reset();
}

Sgd::NoSync::NoSync(Sgd& optimizer) : optimizer_(optimizer) {
  ++optimizer_.impl_->pipeline->no_sync;
}
Sgd::NoSync::~NoSync() { --optimizer_.impl_->pipeline->no_sync; }

void Sgd::set_loss_scale(double scale) {
  if (!(scale > 0.0) || !std::isfinite(scale)) {
    refuse("loss_scale", fmt::format("{} is not a positive number", scale));
  }
  impl_->require_idle("set_loss_scale");
  impl_->pipeline->loss_scale = scale;
}
double Sgd::loss_scale() const noexcept { return impl_->pipeline->loss_scale; }

void Sgd::broadcast_parameters() {
  impl_->require_idle("broadcast_parameters");
  impl_->broadcast_parameters();
}

void Sgd::check_parameters() {
  impl_->require_idle("check_parameters");
  std::vector<std::span<float>> values;
  for (std::size_t t = 0; t < impl_->trained.size(); ++t) {
    values.push_back(impl_->parameter(t).values());
  }
  impl_->exchange->check_parameters(values);
}

void Sgd::abandon(const Error& cause) noexcept { impl_->pipeline->abandon(cause); }
void Sgd::request_stop() noexcept { impl_->exchange->request_stop(); }
bool Sgd::stop_requested() const noexcept { return impl_->stop; }
std::uint64_t Sgd::steps() const noexcept { return impl_->exchange->state().step(); }
const StepStats& Sgd::stats() const noexcept { return impl_->stats; }
std::span<const TensorStats> Sgd::tensor_stats() const noexcept { return impl_->exchange->stats(); }
const State& Sgd::state_of_rank() const noexcept { return impl_->exchange->state(); }
const SgdOptions& Sgd::options() const noexcept { return impl_->options; }
const Costs& Sgd::costs() const noexcept { return impl_->exchange->costs(); }

double Sgd::free_ratio(double compute_seconds, double least) const {
  // Backward is about two thirds of the computing. What is in the last bucket has nothing to hide
  // behind.
  constexpr double kBackward = 2.0 / 3.0;
  double all = 0.0;
  double before_last = 0.0;
  for (const std::vector<std::size_t>& bucket : impl_->plan) {
    before_last = all;
    for (const std::size_t t : bucket) {
      all += static_cast<double>(impl_->parameter(t).spec().elements());
    }
  }
  const bool overlaps = impl_->no_overlap().empty() && all > 0.0;
  return impl_->exchange->free_ratio(
      {.compute = compute_seconds,
       .hidden = overlaps ? kBackward * compute_seconds * before_last / all : 0.0},
      least);
}

void Sgd::raise_ratio(std::int64_t from_step, double ratio) {
  impl_->require_idle("raise_ratio");
  impl_->exchange->raise_ratio(from_step, ratio);
  impl_->options.schedule(impl_->options.schedule().raised(from_step, ratio));
}

Group& Sgd::group() noexcept { return impl_->group; }

void Sgd::save(torch::serialize::OutputArchive&) const {
  refuse("save", "an archive cannot hold what other ranks have", "use dgc::save_checkpoint");
}
void Sgd::load(torch::serialize::InputArchive&) {
  refuse("load", "an archive cannot hold what other ranks have", "use dgc::load_checkpoint");
}

}  // namespace dgc
