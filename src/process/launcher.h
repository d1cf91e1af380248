// Starting workers on this machine.
#pragma once

#include <chrono>
#include <string>
#include <utility>
#include <vector>

namespace dgc::process {

struct Launch {
  int workers = 1;
  std::vector<std::string> arguments;  ///< of each, without the program's name
  /// By which they meet: "shared" or "gloo".
  std::string engine = "shared";
  /// Variables for all of them, beside RANK, WORLD_SIZE, DGC_ENGINE, DGC_STORE and a
  /// random DGC_SECRET.
  std::vector<std::pair<std::string, std::string>> environment = {};
  /// How long workers may take to end by themselves when SIGINT, SIGTERM or SIGHUP comes; it is
  /// passed on to them as SIGTERM. At zero, and at the second signal, they are killed.
  std::chrono::seconds patience{0};
};

/// Runs this program `workers` times as the ranks of one group and waits for all. stdout is
/// shared; of stderr rank 0's progress is shown. When one fails, the others are killed, its last
/// lines are printed, and Error(peer_failed) is thrown. No process outlives this one, whatever ends
/// it. When a signal ended the run, this process ends by it too, after everything is cleared away.
void launch(const Launch& launch);

}  // namespace dgc::process
