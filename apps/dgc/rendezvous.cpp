#include "rendezvous.h"

#include <cstdlib>

#include "dgc/address_store.h"

namespace dgc::app {

bool has_address_rendezvous() noexcept { return true; }

std::unique_ptr<Group> join_group(const std::string& engine, std::chrono::milliseconds timeout) {
  const std::string chosen = engine == "auto" ? engine_from_environment() : engine;
  const bool by_address = chosen == "gloo" && std::getenv("DGC_STORE") == nullptr;
  return make_group(chosen, timeout,
                    by_address ? address_store_from_environment(timeout) : nullptr);
}

}  // namespace dgc::app
