// `dgc-torch`: groups that meet at MASTER_ADDR, by libtorch's store.
#include <torch/version.h>

#include "dgc/address_store.h"
#include "process/rendezvous.h"

namespace dgc::process {

std::string libtorch_version() { return TORCH_VERSION; }

std::unique_ptr<Group> join_group(const std::string& engine, std::chrono::milliseconds timeout) {
  return make_group(engine, timeout,
                    meets_at_address(engine) ? address_store_from_environment(timeout) : nullptr);
}

}  // namespace dgc::process
