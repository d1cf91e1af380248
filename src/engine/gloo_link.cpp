#include "engine/gloo_link.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <condition_variable>
#include <mutex>

#include "dgc/error.h"

namespace dgc::detail {
namespace {

/// While this lives, Gloo's thread of the device waits and looks at no descriptor.
class Standstill final : public gloo::transport::tcp::Handler {
 public:
  explicit Standstill(gloo::transport::tcp::Device& device)
      : device_(device), event_(::eventfd(1, EFD_CLOEXEC)) {
    if (!event_) throw Error(ErrorCode::io, "gloo", "eventfd", "no descriptors are left");
    device_.registerDescriptor(event_.get(), EPOLLIN, this);
    wait_for(State::still);
  }
  ~Standstill() override {
    change_to(State::over);
    wait_for(State::gone);
  }
  Standstill(const Standstill&) = delete;
  Standstill& operator=(const Standstill&) = delete;

  /// On Gloo's thread.
  void handleEvents(int) override {
    change_to(State::still);
    wait_for(State::over);
    // Here it does not wait for the loop to come round.
    device_.unregisterDescriptor(event_.get(), this);
    const std::lock_guard lock(mutex_);
    state_ = State::gone;
    changed_.notify_all();  // with the lock: this object ends as soon as it is given up
  }

 private:
  enum class State { begun, still, over, gone };

  void change_to(State state) {
    const std::lock_guard lock(mutex_);
    state_ = state;
    changed_.notify_all();
  }
  void wait_for(State state) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return state_ == state; });
  }

  gloo::transport::tcp::Device& device_;
  Socket event_;
  std::mutex mutex_;
  std::condition_variable changed_;
  State state_ = State::begun;
};

}  // namespace

Link::Link(gloo::transport::tcp::Context* context, gloo::transport::tcp::Device* device, int rank,
           std::chrono::milliseconds timeout)
    : Pair(context, device, rank, timeout) {
  // Closed, it leaves Gloo's loop by itself. Who connected meanwhile has not been seen by anybody.
  ::close(fd_);
  fd_ = -1;
  state_ = INITIALIZING;
}

void Link::use(Socket socket) {
  const std::lock_guard lock(m_);
  fd_ = socket.get();
  try {
    handleConnected();
  } catch (...) {
    fd_ = -1;
    throw;
  }
  socket.release();
}

Links::Links(std::shared_ptr<gloo::transport::tcp::Device> device, int own_rank, int ranks,
             std::chrono::milliseconds timeout)
    : Context(std::move(device), own_rank, ranks) {
  setTimeout(timeout);
  const Standstill still(*device_);
  for (int peer = 0; peer < size; ++peer) {
    if (peer != rank) Links::createPair(peer);
  }
}

std::unique_ptr<gloo::transport::Pair>& Links::createPair(int peer) {
  auto& pair = pairs_[static_cast<std::size_t>(peer)];
  pair = std::make_unique<Link>(this, device_.get(), peer, getTimeout());
  return pair;
}

}  // namespace dgc::detail
