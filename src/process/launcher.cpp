#include "process/launcher.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <system_error>

#include "base/patient_writer.h"
#include "dgc/error.h"
#include "engine/secret.h"
#include "process/launch_folder.h"
#include "process/stop_signal.h"
#include "process/terminal.h"

namespace dgc::process {
namespace {

volatile std::sig_atomic_t interrupted = 0;
volatile std::sig_atomic_t interruptions = 0;

/// Notes kStopSignals while it lives.
class Interrupts {
 public:
  Interrupts() {
    struct sigaction action {};
    action.sa_handler = [](int number) {
      interrupted = number;
      // Only Ctrl-C is pressed twice by somebody who means it.
      if (number == SIGINT) interruptions = interruptions + 1;
    };
    for (std::size_t i = 0; i < std::size(kStopSignals); ++i) {
      sigaction(kStopSignals[i], nullptr, &before_[i]);
      if (!ignores_hangup(kStopSignals[i])) sigaction(kStopSignals[i], &action, nullptr);
    }
    // Who reads what workers say may be gone (`| head`): they go on to their checkpoint.
    std::signal(SIGPIPE, SIG_IGN);
  }
  ~Interrupts() {
    for (std::size_t i = 0; i < std::size(kStopSignals); ++i)
      sigaction(kStopSignals[i], &before_[i], nullptr);
  }
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

 private:
  struct sigaction before_[std::size(kStopSignals)];
};

/// A rank as a process of its own, and what it says on stderr. Killed with this object.
class Child {
 public:
  Child(int rank, const Launch& launch, const std::string& store, const std::string& secret)
      : rank_(rank) {
    std::vector<std::string> words = launch.arguments;
    words.insert(words.begin(), "dgc");
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);

    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) cannot_start();
    const pid_t parent = ::getpid();
    pid_ = ::fork();
    if (pid_ < 0) {
      ::close(ends[0]);
      ::close(ends[1]);
      cannot_start();
    }
    if (pid_ == 0) {
      // No threads yet, so that everything may be called here.
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(1);
      ::setenv("RANK", std::to_string(rank).c_str(), 1);
      ::setenv("WORLD_SIZE", std::to_string(launch.workers).c_str(), 1);
      ::setenv("DGC_ENGINE", launch.engine.c_str(), 1);
      ::setenv("DGC_STORE", store.c_str(), 1);
      ::setenv("DGC_SECRET", secret.c_str(), 1);
      for (const auto& [name, value] : launch.environment) {
        ::setenv(name.c_str(), value.c_str(), 1);
      }
      ::dup2(ends[1], STDERR_FILENO);
      ::execv("/proc/self/exe", arguments.data());
      say(fmt::format("cannot run /proc/self/exe: {}\n", std::generic_category().message(errno)));
      ::_exit(1);
    }
    ::close(ends[1]);
    errors_ = ends[0];
    ::fcntl(errors_, F_SETFL, O_NONBLOCK);
  }
  ~Child() {
    if (!status_) {
      ::kill(pid_, SIGKILL);
      int status = 0;
      while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
      }
    }
    ::close(errors_);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  int rank() const { return rank_; }
  int errors() const { return open_ ? errors_ : -1; }
  /// The last that it said and that was not shown.
  const std::deque<std::string>& last_lines() const { return lines_; }

  /// Takes what there is on stderr. Progress of rank 0 goes to `out`; its errors wait for the end.
  void read(PatientWriter& out) {
    char block[4096];
    for (;;) {
      const ssize_t count = ::read(errors_, block, sizeof block);
      if (count < 0 && errno == EINTR) continue;
      if (count == 0) open_ = false;
      if (count <= 0) break;
      rest_.append(block, static_cast<std::size_t>(count));
      // A live line ends with '\r', and is overwritten by the next.
      for (auto end = rest_.find_first_of("\n\r"); end != std::string::npos;
           end = rest_.find_first_of("\n\r")) {
        const bool shown = rank_ == 0 && !rest_.starts_with("dgc: ");
        if (shown) {
          show(rest_.substr(0, end + 1), out);
        } else if (rest_[end] == '\n') {
          lines_.push_back(rest_.substr(0, end));
        }
        rest_.erase(0, end + 1);
        if (lines_.size() > kLines) lines_.pop_front();
      }
    }
  }

  /// Whether it has ended; does not wait.
  bool ended() {
    int status = 0;
    if (!status_ && ::waitpid(pid_, &status, WNOHANG) == pid_) status_ = status;
    return status_.has_value();
  }
  void terminate() const {
    if (!status_) ::kill(pid_, SIGTERM);
  }
  /// The signal for which it stopped in good order, or 0.
  int stopped() const {
    for (const int number : kStopSignals) {
      if (WIFEXITED(*status_) && WEXITSTATUS(*status_) == stopped_by(number)) return number;
    }
    return 0;
  }
  /// Whether it was ended by a signal that tells programs to end: some do so at once.
  bool obeyed() const {
    const int by = WIFSIGNALED(*status_) ? WTERMSIG(*status_) : 0;
    return by == SIGINT || by == SIGTERM || by == SIGHUP;
  }
  /// How it ended, if not well.
  std::optional<std::string> failure() const {
    if (stopped() != 0) return std::nullopt;
    if (WIFSIGNALED(*status_)) {
      return fmt::format("was ended by signal {} ({})", WTERMSIG(*status_),
                         ::strsignal(WTERMSIG(*status_)));
    }
    if (WEXITSTATUS(*status_) == 0) return std::nullopt;
    return fmt::format("ended with exit status {}", WEXITSTATUS(*status_));
  }

 private:
  static constexpr std::size_t kLines = 10;

  static void show(const std::string& line, PatientWriter& out) {
    // Live lines are of no use to somebody who will read them later.
    if (line.back() == '\n' || out.idle()) out.put(line);
  }

  [[noreturn]] void cannot_start() const {
    throw Error(ErrorCode::io, "launch", fmt::format("rank {}", rank_),
                "cannot be started: " + std::generic_category().message(errno));
  }

  int rank_;
  pid_t pid_ = -1;
  int errors_ = -1;
  bool open_ = true;
  std::optional<int> status_;
  std::string rest_;
  std::deque<std::string> lines_;
};

void print_last_lines(const Child& child, PatientWriter& out) {
  for (const std::string& line : child.last_lines()) {
    out.put(fmt::format("rank {}: {}\n", child.rank(), line));
  }
}

[[noreturn]] void report(const Child& child, const std::string& failure, PatientWriter& out) {
  print_last_lines(child, out);
  throw Error(ErrorCode::peer_failed, "launch", fmt::format("rank {}", child.rank()), failure);
}

/// Waits for all; throws as soon as one fails. Returns the signal for which they stopped, or 0.
/// After a signal some may still run: when `patience` is over, or when others have failed and they
/// do not notice.
int wait_for(const std::vector<std::unique_ptr<Child>>& children, std::chrono::seconds patience) {
  using Clock = std::chrono::steady_clock;
  std::optional<Clock::time_point> told, lost;
  constexpr std::chrono::seconds kWithoutTheLost(10);
  PatientWriter out;
  int stopped = 0;
  for (;;) {
    std::vector<pollfd> waiting;
    for (const auto& child : children) {
      // In this order, so that nothing said before the end is missed.
      const bool ended = child->ended();
      child->read(out);
      if (!ended) {
        waiting.push_back({child->errors(), POLLIN, 0});
        continue;
      }
      if (child->stopped() != 0) stopped = child->stopped();
      const auto failure = child->failure();
      if (failure && interrupted == 0) report(*child, *failure, out);
      if (failure && !lost) lost = Clock::now();
    }
    if (waiting.empty()) {
      for (const auto& child : children) {
        const auto failure = child->failure();
        if (!failure || child->obeyed()) continue;
        print_last_lines(*child, out);
        out.put(fmt::format("rank {}: {} while it was stopping\n", child->rank(), *failure));
      }
      return interrupted != 0 ? interrupted : stopped;
    }
    if (interrupted != 0 && !told) {
      told = Clock::now();
      for (const auto& child : children) child->terminate();
    }
    if (told && (interruptions > 1 || Clock::now() - *told >= patience)) return interrupted;
    // Without that rank there is no checkpoint to wait for.
    if (told && lost && Clock::now() - std::max(*told, *lost) >= kWithoutTheLost) {
      out.put("a rank is lost, and others do not end: they are killed\n");
      return interrupted;
    }
    out.idle();
    constexpr int kPollMilliseconds = 20;
    ::poll(waiting.data(), waiting.size(), kPollMilliseconds);
  }
}

}  // namespace

void launch(const Launch& launch) {
  interrupted = 0;
  interruptions = 0;
  int signal = 0;
  {
    const Interrupts interrupts;
    const LaunchFolder store;
    const std::string secret = detail::new_secret();
    std::vector<std::unique_ptr<Child>> children;
    for (int r = 0; r < launch.workers && interrupted == 0; ++r) {
      children.push_back(std::make_unique<Child>(r, launch, store.path(), secret));
    }
    signal = wait_for(children, launch.patience);
  }
  // Everything is cleared away: now end by the signal, also where a shell that starts jobs in the
  // background had it ignored.
  if (signal != 0) {
    std::signal(signal, SIG_DFL);
    ::raise(signal);
  }
}

}  // namespace dgc::process
