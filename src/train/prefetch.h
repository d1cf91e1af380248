// Batches made ahead of their use.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "train/task.h"

namespace dgc::train {

/// Where a run is in its data, in positions of the epoch: not in steps, whose size depends on the
/// number of workers.
struct Cursor {
  std::uint64_t epoch = 0;
  std::int64_t position = 0;
  /// The next step's, and moves on.
  Draw next(const Task& task);
};

/// Threads that make the batches from `start` on, at most a few ahead. Batches come out in order
/// and do not depend on the number of threads.
class Prefetcher {
 public:
  Prefetcher(const Task& task, Cursor start, int threads);
  ~Prefetcher();
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  struct Item {
    Draw draw;
    Batch batch;
  };
  /// Waits for it. Throws what Task::batch threw.
  Item next();

 private:
  struct Made {
    Item item;
    std::exception_ptr error;
  };
  void work();
  void end();

  const Task& task_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Cursor cursor_;
  std::uint64_t given_ = 0;  // draws that threads have taken
  std::uint64_t taken_ = 0;  // batches that next() has returned
  std::uint64_t ahead_;
  std::map<std::uint64_t, Made> made_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace dgc::train
