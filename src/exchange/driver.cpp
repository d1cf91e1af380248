// One thread with a queue: buckets are exchanged in the order they were given, as on all ranks.
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "dgc/exchange.h"

namespace dgc {

struct Driver::Impl {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::packaged_task<Bucket()>> tasks;
  bool stopping = false;
  std::jthread thread{[this] { run(); }};

  void run() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [this] { return stopping || !tasks.empty(); });
      if (tasks.empty()) return;
      std::packaged_task<Bucket()> task = std::move(tasks.front());
      tasks.pop_front();
      lock.unlock();
      task();  // what it throws is in the future
      lock.lock();
    }
  }
};

Driver::Driver() : impl_(std::make_unique<Impl>()) {}

Driver::~Driver() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->stopping = true;
  }
  impl_->changed.notify_all();
}

std::future<Bucket> Driver::submit(std::function<Bucket()> work) {
  std::packaged_task<Bucket()> task(std::move(work));
  std::future<Bucket> result = task.get_future();
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->tasks.push_back(std::move(task));
  }
  impl_->changed.notify_all();
  return result;
}

}  // namespace dgc
