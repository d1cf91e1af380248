#include "torch/parameters.h"

#include <fmt/format.h>

#include <map>
#include <set>

namespace dgc::sgd {
namespace {

[[noreturn]] void refuse(const char* owner, const std::string& name, std::string problem,
                         std::string hint) {
  throw Error(ErrorCode::invalid_argument, owner, fmt::format("parameter '{}'", name),
              std::move(problem), std::move(hint));
}

void check(const char* owner, const std::string& name, const torch::Tensor& tensor) {
  if (!tensor.defined())
    refuse(owner, name, "is undefined", "register it before the optimizer is made");
  if (!tensor.is_leaf())
    refuse(owner, name, "is not a leaf", "give the tensors that are to be trained");
  if (!tensor.device().is_cpu()) {
    refuse(owner, name, fmt::format("is on {}", tensor.device().str()),
           "move the model to the CPU");
  }
  if (tensor.layout() != torch::kStrided)
    refuse(owner, name, "is not a strided tensor", "make it dense");
  const auto type = tensor.scalar_type();
  if (!tensor.requires_grad() || type == torch::kFloat || type == torch::kHalf ||
      type == torch::kBFloat16) {
    return;
  }
  refuse(owner, name,
         fmt::format("is of type {}; residuals and messages have 32 bits", torch::toString(type)),
         "convert the model: model->to(torch::kFloat)");
}

}  // namespace

TensorSpec Parameter::spec() const {
  TensorSpec spec = TensorSpec::of(name, tensor.sizes().vec());
  if (send != Send::automatic) spec.dense = send == Send::dense;
  return spec;
}

std::string Parameter::why() const {
  if (because != nullptr) return because;
  if (frozen) return "requires_grad is off";
  if (send != Send::automatic) return "asked for by its group";
  const auto dimensions = tensor.dim();
  return fmt::format("{} dimension{}", dimensions, dimensions == 1 ? "" : "s");
}

std::span<float> Parameter::values() {
  if (master.defined() && tensor._version() != version) reread();
  const torch::Tensor& source = master.defined() ? master : tensor;
  // Looked up each time: set_data and the like may have moved it.
  if (tensor.numel() != elements || source.scalar_type() != torch::kFloat ||
      !source.is_contiguous()) {
    refuse_changed();
  }
  return {source.data_ptr<float>(), static_cast<std::size_t>(elements)};
}

void Parameter::refuse_changed() const {
  throw Error(ErrorCode::wrong_order, owner, fmt::format("parameter '{}'", name),
              "has another size, type or layout than when the optimizer was made",
              "convert the model first, then make the optimizer");
}

void Parameter::publish() {
  if (!master.defined()) {
    tensor.unsafeGetTensorImpl()->bump_version();
    return;
  }
  const torch::NoGradGuard no_grad;
  tensor.copy_(master);  // counts as a change by itself
  version = tensor._version();
}

void Parameter::reread() {
  if (!master.defined()) return;
  const torch::NoGradGuard no_grad;
  master.copy_(tensor);
  version = tensor._version();
}

void check_parameters(std::span<const SgdGroup> groups, const char* owner) {
  std::map<const void*, std::size_t> seen;
  std::set<std::string> names;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (const auto& item : groups[g].parameters) {
      const std::string name = groups[g].prefix + item.key();
      check(owner, name, item.value());
      if (!names.insert(name).second) {
        refuse(owner, name, "is the name of two parameters", "give one of the groups a prefix");
      }
      const auto place = seen.try_emplace(item.value().unsafeGetTensorImpl(), g).first;
      if (place->second == g) continue;
      refuse(owner, name, fmt::format("is in group {} and, tied, in group {}", g, place->second),
             "put tied weights into one group");
    }
  }
}

std::vector<Parameter> collect_parameters(std::span<const SgdGroup> groups) {
  std::vector<Parameter> all;
  std::map<const void*, std::size_t> seen;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (const auto& item : groups[g].parameters) {
      const std::string name = groups[g].prefix + item.key();
      const torch::Tensor& tensor = item.value();
      const auto [place, fresh] = seen.try_emplace(tensor.unsafeGetTensorImpl(), all.size());
      if (!fresh) {
        all[place->second].aliases.push_back(name);
        continue;
      }
      Parameter parameter{.name = name,
                          .tensor = tensor,
                          .group = g,
                          .send = groups[g].options.send(),
                          .frozen = !tensor.requires_grad(),
                          .elements = tensor.numel()};
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
