// A fixed set of threads that share the tasks of one call at a time.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

namespace dgc {

class ThreadPool {
 public:
  /// `threads` counts the calling thread: 1 starts none.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const noexcept;

  /// Calls task(index, worker) for every index in [0, tasks), worker in [0, threads()). Indices are
  /// handed out in order. Returns when all are done; rethrows the first exception.
  void run(std::size_t tasks, const std::function<void(std::size_t index, int worker)>& task);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dgc
