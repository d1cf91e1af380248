// Batches made ahead of their use. Each thread takes the next draw (a range of positions of the
// epoch), makes its batch and puts it under the draw's number; next() takes them in the order of
// the numbers. A batch depends on its draw alone, so the number of threads changes nothing. At most
// two for each thread, and two more, wait to be taken.
#include "train/prefetch.h"

#include <algorithm>

namespace dgc::train {

Draw Cursor::next(const Task& task) {
  const std::int64_t left = task.positions() - position;
  const Draw draw{epoch, position, std::min(left, task.positions_of_step())};
  position += draw.count;
  if (position == task.positions()) {
    ++epoch;
    position = 0;
  }
  return draw;
}

Prefetcher::Prefetcher(const Task& task, Cursor start, int threads)
    : task_(task), cursor_(start), ahead_(static_cast<std::uint64_t>(threads) * 2 + 2) {
  try {
    for (int t = 0; t < threads; ++t) threads_.emplace_back([this] { work(); });
  } catch (...) {  // no more threads to be had
    end();
    throw;
  }
}

Prefetcher::~Prefetcher() { end(); }

void Prefetcher::end() {
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Prefetcher::work() {
  torch::set_num_threads(1);
  const torch::NoGradGuard no_grad;
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || given_ < taken_ + ahead_; });
    if (stop_) return;
    const std::uint64_t number = given_++;
    Made made{{.draw = cursor_.next(task_), .batch = {}}, nullptr};
    lock.unlock();
    try {
      made.item.batch = task_.batch(made.item.draw);
    } catch (...) {
      made.error = std::current_exception();
    }
    lock.lock();
    made_.emplace(number, std::move(made));
    changed_.notify_all();
  }
}

Prefetcher::Item Prefetcher::next() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return made_.contains(taken_); });
  Made made = std::move(made_.extract(taken_++).mapped());
  changed_.notify_all();
  if (made.error) std::rethrow_exception(made.error);
  return std::move(made.item);
}

}  // namespace dgc::train
