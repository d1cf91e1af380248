#include "torch/parameters.h"

#include <fmt/format.h>

#include <map>
#include <set>

namespace dgc::sgd {
namespace {

[[noreturn]] void refuse(const std::string& name, std::string problem, std::string hint) {
  throw Error(ErrorCode::invalid_argument, "Sgd", fmt::format("parameter '{}'", name),
              std::move(problem), std::move(hint));
}

void check(const std::string& name, const torch::Tensor& tensor) {
  if (!tensor.defined()) refuse(name, "is undefined", "register it before the optimizer is made");
  if (!tensor.is_leaf()) refuse(name, "is not a leaf", "give the tensors that are to be trained");
  if (!tensor.device().is_cpu()) {
    refuse(name, fmt::format("is on {}", tensor.device().str()), "move the model to the CPU");
  }
  if (tensor.layout() != torch::kStrided) refuse(name, "is not a strided tensor", "make it dense");
  switch (tensor.scalar_type()) {
    case torch::kFloat:
    case torch::kHalf:
    case torch::kBFloat16:
      return;
    default:
      refuse(name,
             fmt::format("is of type {}; residuals and messages have 32 bits",
                         torch::toString(tensor.scalar_type())),
             "convert the model: model->to(torch::kFloat)");
  }
}

}  // namespace

TensorSpec Parameter::spec() const {
  TensorSpec spec = TensorSpec::of(name, tensor.sizes().vec());
  if (send != Send::automatic) spec.dense = send == Send::dense;
  return spec;
}

std::string Parameter::why() const {
  if (frozen) return "requires_grad is off";
  if (send != Send::automatic) return "asked for by its group";
  const auto dimensions = tensor.dim();
  return fmt::format("{} dimension{}", dimensions, dimensions == 1 ? "" : "s");
}

std::span<float> Parameter::values() const {
  const torch::Tensor& source = master.defined() ? master : tensor;
  // Looked up each time: set_data and the like may have moved it.
  if (source.scalar_type() != torch::kFloat || !source.is_contiguous()) {
    throw Error(ErrorCode::wrong_order, "Sgd", fmt::format("parameter '{}'", name),
                "has another type or layout than when the optimizer was made",
                "convert the model first, then make the optimizer");
  }
  return {source.data_ptr<float>(), static_cast<std::size_t>(source.numel())};
}

void Parameter::publish() const {
  if (master.defined()) {
    const torch::NoGradGuard no_grad;
    tensor.copy_(master);  // counts as a change by itself
    return;
  }
  tensor.unsafeGetTensorImpl()->bump_version();
}

void Parameter::reread() const {
  if (!master.defined()) return;
  const torch::NoGradGuard no_grad;
  master.copy_(tensor);
}

std::vector<Parameter> collect_parameters(std::span<const SgdGroup> groups) {
  std::vector<Parameter> all;
  std::map<const void*, std::size_t> seen;
  std::set<std::string> names;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (const auto& item : groups[g].parameters) {
      const std::string& name = item.key();
      const torch::Tensor& tensor = item.value();
      check(name, tensor);
      if (!names.insert(name).second) {
        refuse(name, "is in two groups", "give every parameter a name of its own");
      }
      const auto [place, fresh] = seen.try_emplace(tensor.unsafeGetTensorImpl(), all.size());
      if (!fresh) {
        all[place->second].aliases.push_back(name);
        continue;
      }
      Parameter parameter{.name = name,
                          .tensor = tensor,
                          .group = g,
                          .send = groups[g].options.send(),
                          .frozen = !tensor.requires_grad()};
      const bool direct = tensor.scalar_type() == torch::kFloat && tensor.is_contiguous();
      if (!direct && !parameter.frozen) {
        parameter.master = torch::empty(tensor.sizes(), torch::kFloat);
        parameter.reread();
      }
      all.push_back(std::move(parameter));
    }
  }
  return all;
}

torch::Tensor as_contiguous_float(const torch::Tensor& gradient) {
  const torch::NoGradGuard no_grad;
  torch::Tensor dense = gradient.detach();
  if (dense.layout() != torch::kStrided) dense = dense.to_dense();
  return dense.to(torch::kFloat).contiguous();
}

}  // namespace dgc::sgd
