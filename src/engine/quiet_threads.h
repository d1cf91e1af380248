// Threads of the library's own leave signals to the program.
#pragma once

#include <pthread.h>

#include <csignal>

namespace dgc::detail {

/// Threads made while this lives take no signals but those of their own faults: no SIGPIPE, and the
/// program's handlers run on the program's threads.
class QuietThreads {
 public:
  QuietThreads() {
    sigset_t quiet;
    sigfillset(&quiet);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) sigdelset(&quiet, fault);
    pthread_sigmask(SIG_SETMASK, &quiet, &before_);
  }
  ~QuietThreads() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  QuietThreads(const QuietThreads&) = delete;
  QuietThreads& operator=(const QuietThreads&) = delete;

 private:
  sigset_t before_;
};

}  // namespace dgc::detail
