#include "process/rendezvous.h"

#include "base/environment.h"
#include "engine/agent_store.h"

namespace dgc::process {

bool meets_at_agent(const std::string& engine) {
  const std::string chosen = engine == "auto" ? engine_from_environment() : engine;
  return (chosen == "gloo" || chosen == "shared") && !variable("DGC_STORE") &&
         detail::has_agent_store();
}

std::string security_note(const Group& group) {
  if (!is_open_to_strangers(group)) return "";
  return "no secret is set: anybody in this network can disturb the run. "
         "Set DGC_SECRET for all workers (docs/multi-node.md)";
}

}  // namespace dgc::process
