// Starting workers on this machine.
#pragma once

#include <chrono>
#include <csignal>
#include <string>
#include <utility>
#include <vector>

namespace dgc::process {

/// What ends a run in good order, sent to the launcher or to a worker. SIGUSR1 is what mpirun
/// passes on without killing anybody.
inline constexpr int kStopSignals[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};

/// Whether it is SIGHUP, and nohup (or who else started this) wants it ignored.
bool ignores_hangup(int signal);

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

/// The exit status of a worker that stopped, in good order, because of a signal.
constexpr int stopped_by(int signal) { return 128 + signal; }

}  // namespace dgc::process
