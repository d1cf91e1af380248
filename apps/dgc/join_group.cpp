// `dgc-torch`: groups that meet at MASTER_ADDR, by libtorch's store.
#include "dgc/address_store.h"
#include "process/rendezvous.h"

namespace dgc::process {

bool has_libtorch() { return true; }

std::unique_ptr<Group> join_group(const std::string& engine, std::chrono::milliseconds timeout) {
  return make_group(engine, timeout,
                    meets_at_address(engine) ? address_store_from_environment(timeout) : nullptr);
}

}  // namespace dgc::process
