#include "exchange/driver.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

namespace dgc::exchange {

struct Driver::Impl {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::packaged_task<Contents()>> tasks;
  bool stopping = false;
  std::jthread thread{[this] { run(); }};

  void run() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [this] { return stopping || !tasks.empty(); });
      if (tasks.empty()) return;
      std::packaged_task<Contents()> task = std::move(tasks.front());
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

std::future<Contents> Driver::submit(std::function<Contents()> work) {
  std::packaged_task<Contents()> task(std::move(work));
  std::future<Contents> result = task.get_future();
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->tasks.push_back(std::move(task));
  }
  impl_->changed.notify_all();
  return result;
}

}  // namespace dgc::exchange
