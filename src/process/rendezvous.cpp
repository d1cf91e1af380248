#include "process/rendezvous.h"

#include <cstdlib>

namespace dgc::process {

bool meets_at_address(const std::string& engine) {
  const std::string chosen = engine == "auto" ? engine_from_environment() : engine;
  return chosen == "gloo" && std::getenv("DGC_STORE") == nullptr;
}

}  // namespace dgc::process
