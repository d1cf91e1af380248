// `dgc-torch serve --from`: what a hub's run begins with, out of a checkpoint.
#include <torch/torch.h>

#include <nlohmann/json.hpp>

#include "checkpoint/load.h"
#include "dgc/engines.h"
#include "dgc/error.h"
#include "hub/packet.h"
#include "hub/terms.h"
#include "torch/saved_tensors.h"
#include "torch_part.h"

namespace dgc::app {

hub::Bytes initial_parameters(const std::filesystem::path& checkpoints) {
  const auto groups = make_local_groups(1);
  const auto checkpoint = checkpoint::open(*groups.front(), checkpoints);
  if (!checkpoint) {
    throw Error(ErrorCode::io, "serve", "--from " + checkpoints.string(), "has no checkpoint",
                "give RUN/MODE/checkpoints of a run of `dgc train`");
  }
  const sgd::Dictionary saved = sgd::unpickled(checkpoint->shared(sgd::kModelFile),
                                               (checkpoint->path() / sgd::kModelFile).string());
  std::vector<TensorSpec> specs;
  std::vector<torch::Tensor> tensors;
  for (const auto& item : saved) {
    if (item.value().scalar_type() != torch::kFloat) continue;
    specs.push_back(TensorSpec::of(item.key(), item.value().sizes().vec()));
    tensors.push_back(item.value().contiguous());
  }
  std::vector<std::span<const std::byte>> blobs;
  for (const torch::Tensor& tensor : tensors) {
    blobs.emplace_back(static_cast<const std::byte*>(tensor.data_ptr()), tensor.nbytes());
  }
  return hub::write_packet({{"tensors", hub::to_json(specs)}}, blobs);
}

}  // namespace dgc::app
