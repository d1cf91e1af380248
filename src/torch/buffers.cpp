#include "torch/buffers.h"

#include <fmt/format.h>

#include <cstring>

#include "dgc/collectives.h"
#include "exchange/context.h"

namespace dgc::sgd {

void broadcast_tensor(Group& group, const torch::Tensor& tensor) {
  const torch::NoGradGuard no_grad;
  torch::Tensor copy = tensor.detach().clone(torch::MemoryFormat::Contiguous);
  broadcast(group, {static_cast<std::byte*>(copy.data_ptr()), copy.nbytes()}, 0);
  if (group.rank() != 0) tensor.detach().copy_(copy);
}

void ModelBuffers::synchronize() const {
  const torch::NoGradGuard no_grad;
  std::vector<float> values;
  const auto averaged = [](const torch::Tensor& t) {
    return torch::isFloatingType(t.scalar_type());
  };
  for (const auto& [name, buffer] : all_) {
    if (!averaged(buffer)) {
      broadcast_tensor(group_, buffer);
      continue;
    }
    const torch::Tensor flat = as_contiguous_float(buffer);
    values.insert(values.end(), flat.data_ptr<float>(), flat.data_ptr<float>() + flat.numel());
  }
  all_reduce(group_, values);
  const float share = 1.0f / static_cast<float>(group_.size());
  const float* next = values.data();
  for (const auto& [name, buffer] : all_) {
    if (!averaged(buffer)) continue;
    torch::Tensor mean = torch::empty(buffer.sizes(), torch::kFloat);
    std::memcpy(mean.data_ptr<float>(), next, mean.nbytes());
    buffer.copy_(mean.mul_(share));
    next += mean.numel();
  }
}

void ModelBuffers::add(const torch::OrderedDict<std::string, torch::Tensor>& buffers,
                       std::span<const Parameter> parameters) {
  try {
    std::string text = "dgc buffers\n";
    for (const auto& item : buffers) {
      const std::string& name = item.key();
      const torch::Tensor& buffer = item.value();
      if (!buffer.defined()) continue;
      const auto refuse = [&](const char* problem, const char* hint) {
        throw Error(ErrorCode::invalid_argument, owner_, fmt::format("buffer '{}'", name), problem,
                    hint);
      };
      if (!buffer.device().is_cpu()) refuse("is not on the CPU", "move the model to the CPU");
      for (const Parameter& parameter : parameters) {
        if (parameter.name == name) refuse("has the name of a parameter", "rename one of them");
      }
      for (const auto& known : all_) {
        if (known.first == name) refuse("is there already", "add each buffer once");
      }
      text +=
          fmt::format("buffer {} {} {}\n", name, TensorSpec{"", buffer.sizes().vec()}.shape_text(),
                      torch::toString(buffer.scalar_type()));
    }
    exchange::handshake(group_, text);
  } catch (const std::exception& error) {
    group_.fail(as_error(error));
    throw;
  }
  for (const auto& item : buffers) {
    if (!item.value().defined()) continue;
    all_.emplace_back(item.key(), item.value());
    broadcast_tensor(group_, item.value());
  }
}

}  // namespace dgc::sgd
