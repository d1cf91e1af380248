#include "base/parallel.h"

#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "dgc/error.h"

namespace dgc {

struct ThreadPool::Impl {
  std::mutex mutex;
  std::condition_variable start;
  std::condition_variable done;
  std::uint64_t generation = 0;  // of the current call; guarded by mutex, as all below
  int busy = 0;
  bool stopping = false;
  std::exception_ptr error;

  const std::function<void(std::size_t, int)>* task = nullptr;
  std::size_t tasks = 0;
  std::atomic<std::size_t> next{0};
  std::vector<std::jthread> helpers;

  void stop() {
    {
      const std::lock_guard lock(mutex);
      stopping = true;
    }
    start.notify_all();
  }

  void work(int worker) noexcept {
    try {
      for (std::size_t i = next++; i < tasks; i = next++) (*task)(i, worker);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
      next = tasks;  // the others stop at their next task
    }
  }

  void helper(int worker) {
    std::uint64_t seen = 0;
    std::unique_lock lock(mutex);
    while (true) {
      start.wait(lock, [&] { return stopping || generation != seen; });
      if (stopping) return;
      seen = generation;
      lock.unlock();
      work(worker);
      lock.lock();
      if (--busy == 0) done.notify_one();
    }
  }
};

ThreadPool::ThreadPool(int threads) : impl_(std::make_unique<Impl>()) {
  Impl* const impl = impl_.get();
  try {
    for (int worker = 1; worker < threads; ++worker) {
      impl->helpers.emplace_back([impl, worker] { impl->helper(worker); });
    }
  } catch (const std::system_error& error) {
    impl->stop();  // or those already started would be waited for without end
    throw Error(ErrorCode::invalid_argument, "threads", std::to_string(threads), error.what(),
                "use fewer threads");
  }
}

ThreadPool::~ThreadPool() { impl_->stop(); }

int ThreadPool::threads() const noexcept { return static_cast<int>(impl_->helpers.size()) + 1; }

void ThreadPool::run(std::size_t tasks, const std::function<void(std::size_t, int)>& task) {
  if (impl_->helpers.empty() || tasks < 2) {
    for (std::size_t i = 0; i < tasks; ++i) task(i, 0);
    return;
  }
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->task = &task;
    impl_->tasks = tasks;
    impl_->next = 0;
    impl_->error = nullptr;
    impl_->busy = static_cast<int>(impl_->helpers.size());
    ++impl_->generation;
  }
  impl_->start.notify_all();
  impl_->work(0);
  std::unique_lock lock(impl_->mutex);
  impl_->done.wait(lock, [this] { return impl_->busy == 0; });
  if (impl_->error) std::rethrow_exception(impl_->error);
}

}  // namespace dgc
