#include "process/rendezvous.h"

#include "base/environment.h"

namespace dgc::process {

bool meets_at_address(const std::string& engine) {
  const std::string chosen = engine == "auto" ? engine_from_environment() : engine;
  return (chosen == "gloo" || chosen == "shared") && !variable("DGC_STORE");
}

}  // namespace dgc::process
