// Buffers, such as the running statistics of batch-norm: not trained, and not the same on all
// ranks.
#include <fmt/format.h>

#include <cstring>

#include "dgc/collectives.h"
#include "exchange/context.h"
#include "torch/sgd_impl.h"

namespace dgc {

void Sgd::Impl::broadcast_buffer(const torch::Tensor& buffer) {
  const torch::NoGradGuard no_grad;
  torch::Tensor copy = buffer.detach().clone(torch::MemoryFormat::Contiguous);
  broadcast(group, {static_cast<std::byte*>(copy.data_ptr()), copy.nbytes()}, 0);
  if (group.rank() != 0) buffer.detach().copy_(copy);
}

void Sgd::Impl::sync_buffers() {
  const torch::NoGradGuard no_grad;
  std::vector<float> values;
  const auto averaged = [](const torch::Tensor& t) {
    return torch::isFloatingType(t.scalar_type());
  };
  for (const auto& [name, buffer] : buffers) {
    if (!averaged(buffer)) {
      broadcast_buffer(buffer);
      continue;
    }
    const torch::Tensor flat = sgd::as_contiguous_float(buffer);
    values.insert(values.end(), flat.data_ptr<float>(), flat.data_ptr<float>() + flat.numel());
  }
  all_reduce(group, values);
  const float share = 1.0f / static_cast<float>(group.size());
  const float* next = values.data();
  for (const auto& [name, buffer] : buffers) {
    if (!averaged(buffer)) continue;
    torch::Tensor mean = torch::empty(buffer.sizes(), torch::kFloat);
    std::memcpy(mean.data_ptr<float>(), next, mean.nbytes());
    buffer.copy_(mean.mul_(share));
    next += mean.numel();
  }
}

void Sgd::add_buffers(const torch::OrderedDict<std::string, torch::Tensor>& buffers) {
  Impl& my = *impl_;
  my.require_idle("add_buffers");
  try {
    std::string all = "dgc buffers\n";
    for (const auto& item : buffers) {
      const std::string& name = item.key();
      const torch::Tensor& buffer = item.value();
      if (!buffer.defined()) continue;
      const auto refuse = [&](const char* problem, const char* hint) {
        throw Error(ErrorCode::invalid_argument, "Sgd", fmt::format("buffer '{}'", name), problem,
                    hint);
      };
      if (!buffer.device().is_cpu()) refuse("is not on the CPU", "move the model to the CPU");
      for (const sgd::Parameter& parameter : my.parameters) {
        if (parameter.name == name) refuse("has the name of a parameter", "rename one of them");
      }
      for (const auto& known : my.buffers) {
        if (known.first == name) refuse("is there already", "add each buffer once");
      }
      all +=
          fmt::format("buffer {} {} {}\n", name, TensorSpec{"", buffer.sizes().vec()}.shape_text(),
                      torch::toString(buffer.scalar_type()));
    }
    exchange::handshake(my.group, all);
  } catch (const std::exception& error) {
    my.group.fail(as_error(error));
    throw;
  }
  for (const auto& item : buffers) {
    if (!item.value().defined()) continue;
    my.buffers.emplace_back(item.key(), item.value());
    my.broadcast_buffer(item.value());
  }
}

void Sgd::sync_buffers() {
  impl_->require_idle("sync_buffers");
  impl_->sync_buffers();
}

}  // namespace dgc
