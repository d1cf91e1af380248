#include "process/stop_signal.h"

namespace dgc::process {

volatile std::sig_atomic_t stop_signal = 0;

bool ignores_hangup(int signal) {
  struct sigaction now {};
  return signal == SIGHUP && sigaction(signal, nullptr, &now) == 0 && now.sa_handler == SIG_IGN;
}

void note_stop_signals() {
  struct sigaction action {};
  action.sa_handler = [](int number) { stop_signal = number; };
  for (const int number : kStopSignals) {
    // A second Ctrl-C ends at once. Of others several may come: from the launcher, from the shell.
    action.sa_flags = SA_RESTART;
    if (number == SIGINT) action.sa_flags |= static_cast<int>(SA_RESETHAND);
    if (!ignores_hangup(number)) sigaction(number, &action, nullptr);
  }
  std::signal(SIGPIPE, SIG_IGN);
}

}  // namespace dgc::process
