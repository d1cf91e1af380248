// `dgc-torch`: groups that torchrun started, too.
#include <torch/version.h>

#include "process/rendezvous.h"
#include "torch/agent_store.h"

namespace dgc::process {

std::string libtorch_version() { return TORCH_VERSION; }

std::unique_ptr<Group> join_group(const std::string& engine, std::chrono::milliseconds timeout) {
  detail::know_agent_store();
  return make_group(engine, timeout);
}

}  // namespace dgc::process
