// Every header of dgc::torch, compiled and linked outside the project: one step of dgc::Sgd.
#include <dgc/address_store.h>
#include <dgc/checkpoint.h>
#include <dgc/sgd.h>

int main() {
  const auto group = dgc::make_group("local");
  torch::Tensor w = torch::ones({4, 4});
  w.set_requires_grad(true);
  dgc::Sgd optimizer(*group, std::vector<torch::Tensor>{w},
                     dgc::SgdOptions(0.5).schedule(dgc::Schedule(1.0)));
  w.sum().backward();
  optimizer.step();
  // Links the checkpoints and the address store, too.
  const bool nothing = !dgc::load_checkpoint("no-such-folder", optimizer);
  const bool alone = dgc::address_store_from_environment(dgc::kDefaultTimeout) == nullptr;
  return nothing && alone && w.sum().item<float>() == 8.0f ? 0 : 1;
}
