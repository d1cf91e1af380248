#include "torch/saved_tensors.h"

#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <torch/serialize.h>

#include "dgc/collectives.h"
#include "dgc/state.h"

namespace dgc::sgd {

std::vector<char> pickled(const Dictionary& dictionary) { return torch::pickle_save(dictionary); }

Dictionary unpickled(std::span<const std::byte> bytes, const std::string& subject) {
  try {
    const auto* const data = reinterpret_cast<const char*>(bytes.data());
    const auto value = torch::pickle_load(std::vector<char>(data, data + bytes.size()));
    Dictionary dictionary;
    for (const auto& item : value.toGenericDict()) {
      dictionary.insert(item.key().toStringRef(), item.value().toTensor());
    }
    return dictionary;
  } catch (const c10::Error& error) {
    throw Error(ErrorCode::bad_state, "load", subject,
                fmt::format("is not a dictionary of tensors: {}", error.what_without_backtrace()),
                "use another checkpoint; nothing was loaded");
  }
}

torch::Tensor snapshot(const torch::Tensor& tensor) {
  return tensor.detach().clone(torch::MemoryFormat::Contiguous);
}

torch::Tensor random_state() {
  auto generator = at::detail::getDefaultCPUGenerator();
  const std::scoped_lock lock(generator.mutex());
  return generator.get_state();
}

void set_random_state(const torch::Tensor& state) {
  auto generator = at::detail::getDefaultCPUGenerator();
  const std::scoped_lock lock(generator.mutex());
  generator.set_state(state);
}

void add_of_all_ranks(Group& group, const Dictionary& mine, Dictionary& all) {
  const std::vector<char> bytes = pickled(mine);
  const auto gathered = all_gather(group, std::as_bytes(std::span(bytes)));
  for (std::size_t r = 0; r < gathered.size(); ++r) {
    for (const auto& item : unpickled(gathered[r], fmt::format("rank {}", r))) {
      all.insert(fmt::format("rank/{}/{}", r, item.key()), item.value());
    }
  }
}

SavedTensors::SavedTensors(const checkpoint::Checkpoint& checkpoint, const char* file)
    : subject_((checkpoint.path() / file).string()),
      tensors_(unpickled(checkpoint.shared(file), subject_)) {}

const torch::Tensor& SavedTensors::at(const std::string& name, const torch::Tensor& like) const {
  if (!has(name)) {
    throw Error(ErrorCode::state_mismatch, "load", subject_, fmt::format("has no '{}'", name),
                "it was written by another model; nothing was loaded");
  }
  const torch::Tensor& found = tensors_.find(name)->value();
  if (found.sizes() != like.sizes() || found.scalar_type() != like.scalar_type()) {
    const auto text = [](const torch::Tensor& tensor) {
      return fmt::format("{} {}", TensorSpec{"", tensor.sizes().vec()}.shape_text(),
                         torch::toString(tensor.scalar_type()));
    };
    throw Error(ErrorCode::shape_mismatch, "load", subject_,
                fmt::format("'{}' is {} there and {} here", name, text(found), text(like)),
                "it was written by another model; nothing was loaded");
  }
  return found;
}

}  // namespace dgc::sgd
