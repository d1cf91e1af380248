// Ranks as processes of the test.
#pragma once

#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/temporary_folder.h"
#include "dgc/engines.h"

namespace dgc::test {

/// One process for each rank. None outlives this object, nor the test.
class Ranks {
 public:
  Ranks(int size, const std::function<void(int rank)>& work) {
    const pid_t parent = ::getpid();
    for (int rank = 0; rank < size; ++rank) {
      const pid_t pid = ::fork();
      if (pid == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (::getppid() != parent) ::_exit(3);
        try {
          work(rank);
        } catch (const std::exception& error) {
          fmt::print(stderr, "rank {}: {}\n", rank, error.what());
          ::_exit(1);
        }
        ::_exit(0);
      }
      pids_.push_back(pid);
    }
  }
  ~Ranks() {
    for (const pid_t pid : pids_) {
      if (pid <= 0) continue;
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
  }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  void signal(int rank, int number) { ::kill(pids_[static_cast<std::size_t>(rank)], number); }

  /// "" if the rank ends well within the time.
  std::string wait(int rank, std::chrono::steady_clock::time_point deadline) {
    pid_t& pid = pids_[static_cast<std::size_t>(rank)];
    for (;;) {
      int status = 0;
      if (::waitpid(pid, &status, WNOHANG) == pid) {
        pid = -1;
        if (WIFSIGNALED(status)) return fmt::format("rank {}: signal {}", rank, WTERMSIG(status));
        return WEXITSTATUS(status) == 0
                   ? ""
                   : fmt::format("rank {}: exit code {}", rank, WEXITSTATUS(status));
      }
      if (std::chrono::steady_clock::now() >= deadline)
        return fmt::format("rank {}: still running", rank);
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }

 private:
  std::vector<pid_t> pids_;
};

/// As rank of a Gloo group.
inline std::unique_ptr<Group> join(const std::filesystem::path& folder, int rank, int size,
                                   std::chrono::milliseconds timeout, std::string name = "dgc") {
  return make_gloo_group(
      make_file_store(folder),
      {.rank = rank, .size = size, .timeout = timeout, .host_id = {}, .name = std::move(name)});
}

/// The engines of this build that have processes for ranks and need no launcher of their own.
inline std::vector<std::string> process_engines() {
  std::vector<std::string> names = engines();
  std::erase_if(names, [](const std::string& name) { return name == "local" || name == "mpi"; });
  return names;
}

/// As rank of such an engine.
inline std::unique_ptr<Group> join(const std::string& engine, const std::filesystem::path& folder,
                                   int rank, int size, std::chrono::milliseconds timeout,
                                   std::string name = "dgc") {
  if (engine == "gloo") return join(folder, rank, size, timeout, std::move(name));
  return make_shared_group(
      make_file_store(folder),
      {.rank = rank, .size = size, .timeout = timeout, .host_id = {}, .name = std::move(name)});
}

}  // namespace dgc::test
