// Starting workers on this machine.
#pragma once

#include <string>
#include <vector>

namespace dgc::app {

/// Runs this program `workers` times with these arguments, as the ranks of a gloo group (RANK,
/// WORLD_SIZE and DGC_STORE are set), and waits for all. stdout is shared; of stderr only rank 0's
/// progress is shown. When one fails, the others are killed, its last lines are printed, and
/// Error(peer_failed) is thrown. No process outlives this one, whatever ends it; SIGINT, SIGTERM
/// and SIGHUP end all and then this one.
void launch(int workers, const std::vector<std::string>& arguments);

}  // namespace dgc::app
