// Signals that end a run in good order.
#pragma once

#include <csignal>

namespace dgc::process {

/// What ends a run in good order, sent to the launcher or to a worker. SIGUSR1 is what mpirun
/// passes on without killing anybody.
inline constexpr int kStopSignals[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};

/// Whether it is SIGHUP, and nohup (or who else started this) wants it ignored.
bool ignores_hangup(int signal);

/// The last of kStopSignals that came since note_stop_signals(); 0 before.
extern volatile std::sig_atomic_t stop_signal;
/// From now on they are noted in stop_signal, and end nothing by themselves; a second SIGINT ends
/// the process at once. Whoever reads what this process prints may go away: SIGPIPE is ignored.
void note_stop_signals();

/// The exit status of a process that stopped, in good order, because of a signal.
constexpr int stopped_by(int signal) { return 128 + signal; }

}  // namespace dgc::process
