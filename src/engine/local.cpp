// Workers as threads of one process: a mailbox for each pair of ranks.
#include <fmt/format.h>

#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>

#include "dgc/group.h"
#include "engine/parcel.h"

namespace dgc {
namespace {

/// What all ranks of a local group share.
struct Hub {
  explicit Hub(int n)
      : size(n),
        mail(static_cast<std::size_t>(n) * static_cast<std::size_t>(n)),
        gone(static_cast<std::size_t>(n), false) {}

  using Mail = std::deque<Parcel>;
  Mail& box(int from, int to) {
    const auto row = static_cast<std::size_t>(from) * static_cast<std::size_t>(size);
    return mail[row + static_cast<std::size_t>(to)];
  }

  const int size;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Mail> mail;
  std::vector<bool> gone;              // ranks whose Group was destroyed
  std::optional<std::string> failure;  // first cause, with the rank that gave it
  int failed_rank = -1;
};

class LocalGroup final : public Group {
 public:
  LocalGroup(std::shared_ptr<Hub> hub, int rank, std::chrono::milliseconds timeout)
      : Group(rank, hub->size, timeout), hub_(std::move(hub)) {}

  ~LocalGroup() override {
    {
      const std::lock_guard lock(hub_->mutex);
      hub_->gone[static_cast<std::size_t>(rank())] = true;
    }
    hub_->changed.notify_all();
  }

  std::string_view engine() const noexcept override { return "local"; }
  std::string host() const override { return "local"; }

 protected:
  void do_exchange(std::span<const Outgoing> sends, std::span<const Incoming> receives,
                   Deadline deadline) override {
    // Copies are made outside the lock, so that ranks hinder each other only for a pointer's time.
    std::vector<Parcel> copies;
    copies.reserve(sends.size());
    for (const Outgoing& send : sends) copies.push_back(Parcel::copy_of(send.bytes));
    {
      const std::lock_guard lock(hub_->mutex);
      for (std::size_t i = 0; i < sends.size(); ++i) {
        hub_->box(rank(), sends[i].peer).push_back(std::move(copies[i]));
      }
    }
    hub_->changed.notify_all();
    for (const Incoming& receive : receives) {
      const auto [bytes, memory] = wait_for(receive.peer, deadline);
      if (bytes.size() != receive.bytes.size()) {
        throw Error(ErrorCode::bad_length, "receive", fmt::format("rank {}", receive.peer),
                    fmt::format("sent {} bytes, {} expected", bytes.size(), receive.bytes.size()),
                    "all ranks must make the same calls in the same order");
      }
      std::memcpy(receive.bytes.data(), bytes.data(), bytes.size());
    }
  }

  /// A mailbox takes messages of any size.
  int do_swap(std::span<const std::span<const std::byte>> outgoing, std::uint64_t bound,
              std::span<const std::uint64_t> /*next*/, std::span<Parcel> from,
              Deadline deadline) override {
    std::vector<Parcel> copies(from.size());
    for (std::size_t r = 0; r < from.size(); ++r) {
      // What goes to several is copied once.
      const bool again = r > 0 && outgoing[r].data() == outgoing[r - 1].data() &&
                         outgoing[r].size() == outgoing[r - 1].size();
      copies[r] = again ? copies[r - 1] : Parcel::copy_of(outgoing[r]);
    }
    {
      const std::lock_guard lock(hub_->mutex);
      for (int peer = 0; peer < size(); ++peer) {
        if (peer == rank()) continue;
        hub_->box(rank(), peer).push_back(std::move(copies[static_cast<std::size_t>(peer)]));
      }
    }
    hub_->changed.notify_all();
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank()) continue;
      Parcel& parcel = from[static_cast<std::size_t>(peer)];
      parcel = wait_for(peer, deadline);
      check_parcel(peer, parcel.bytes.size(), bound);
    }
    return 1;
  }

  void announce(const Error& cause) noexcept override {
    {
      const std::lock_guard lock(hub_->mutex);
      if (!hub_->failure) {
        hub_->failure = cause.what();
        hub_->failed_rank = rank();
      }
    }
    hub_->changed.notify_all();
  }

 private:
  Parcel wait_for(int peer, Deadline deadline) {
    std::unique_lock lock(hub_->mutex);
    Hub::Mail& box = hub_->box(peer, rank());
    const bool woken = hub_->changed.wait_until(lock, deadline, [&] {
      return !box.empty() || hub_->failure || hub_->gone[static_cast<std::size_t>(peer)];
    });
    // What has arrived counts, even if its sender is gone by now.
    if (!box.empty()) {
      Parcel parcel = std::move(box.front());
      box.pop_front();
      return parcel;
    }
    const std::string subject = fmt::format("rank {}", peer);
    if (hub_->failure) {
      throw Error(ErrorCode::peer_failed, "receive", fmt::format("rank {}", hub_->failed_rank),
                  "gave up: " + *hub_->failure);
    }
    if (woken) throw Error(ErrorCode::peer_lost, "receive", subject, "left the group");
    throw Error(ErrorCode::timeout, "receive", subject,
                fmt::format("sent nothing for {} ms", timeout().count()));
  }

  std::shared_ptr<Hub> hub_;
};

}  // namespace

std::vector<std::unique_ptr<Group>> make_local_groups(int size, std::chrono::milliseconds timeout) {
  if (size < 1) {
    throw Error(ErrorCode::invalid_argument, "local", fmt::format("{} workers", size),
                "a group has at least one");
  }
  const auto hub = std::make_shared<Hub>(size);
  std::vector<std::unique_ptr<Group>> groups;
  for (int rank = 0; rank < size; ++rank) {
    groups.push_back(std::make_unique<LocalGroup>(hub, rank, timeout));
  }
  return groups;
}

}  // namespace dgc
