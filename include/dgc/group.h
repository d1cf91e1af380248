// A fixed set of workers that exchange bytes: the only thing that algorithms know of a network.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dgc/error.h"

namespace dgc {

struct Outgoing {
  int peer;
  std::span<const std::byte> bytes;
};
struct Incoming {
  int peer;
  std::span<std::byte> bytes;
};

/// What a rank sent. Copies share the memory.
struct Parcel {
  std::span<const std::byte> bytes;
  std::shared_ptr<const std::byte[]> memory;  ///< holds `bytes`

  /// A copy of `bytes`.
  static Parcel copy_of(std::span<const std::byte> bytes);
};

/// Payload that a rank has sent and received, without the headers of the engine below.
struct Traffic {
  std::uint64_t bytes_sent = 0;
  std::uint64_t bytes_received = 0;
  std::uint64_t messages_sent = 0;

  Traffic operator+(const Traffic& more) const {
    return {bytes_sent + more.bytes_sent, bytes_received + more.bytes_received,
            messages_sent + more.messages_sent};
  }
  Traffic operator-(const Traffic& earlier) const {
    return {bytes_sent - earlier.bytes_sent, bytes_received - earlier.bytes_received,
            messages_sent - earlier.messages_sent};
  }
};

/// One rank's end of a group. All ranks make the same calls in the same order. A group is used by
/// one thread at a time (wrong_order otherwise, and nothing is sent). A group of one needs no
/// peers, and its collectives do nothing.
///
/// Errors: peer_lost and timeout name the suspected peer; peer_failed carries the cause that
/// another rank gave to fail(). After any of them the group is dead: every later call throws an
/// Error with the first one's code and cause, which says that the group ended earlier, and a new
/// group has to be made. No call blocks longer than timeout().
class Group {
 public:
  virtual ~Group() = default;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  /// What users call rank `r` of this group: its number in the outermost group.
  virtual int world_rank(int r) const noexcept { return r; }
  /// "local", "gloo", "mpi"; more where a link is emulated (make_emulated_link).
  virtual std::string_view engine() const noexcept = 0;
  /// Identifies the machine: ranks with the same text share it.
  virtual std::string host() const = 0;

  std::chrono::milliseconds timeout() const noexcept { return timeout_; }
  void set_timeout(std::chrono::milliseconds timeout) noexcept { timeout_ = timeout; }

  /// Sends and receives all of these at once; returns when all are done. Between two ranks messages
  /// arrive in the order of the calls, at most one each way per call. Both sides must know the
  /// size; empty messages are not sent. Throws Error(invalid_argument) for a peer out of range or
  /// oneself.
  void exchange(std::span<const Outgoing> sends, std::span<const Incoming> receives);

  /// Sends outgoing[r] to rank r and returns what each rank sent here, by rank; one's own is
  /// copied. One message each way, of any size up to `bound`; all ranks give the same `bound`.
  /// `next` are the bounds of the calls that follow, where they are known, the same on all ranks.
  /// Room for two of them is made now: their messages then need no permission, and take one network
  /// delay even if they are sent at once. Where has_room() says no, lengths travel first, and it
  /// takes two rounds. Throws Error(limit_exceeded) for a message longer than `bound`.
  std::vector<Parcel> swap(std::span<const std::span<const std::byte>> outgoing,
                           std::uint64_t bound, std::span<const std::uint64_t> next = {});
  /// The same message to all.
  std::vector<Parcel> swap(std::span<const std::byte> mine, std::uint64_t bound,
                           std::span<const std::uint64_t> next = {});
  /// Whether messages of up to `bound` bytes from all other ranks are within kParcelRoom.
  bool has_room(std::uint64_t bound) const noexcept {
    return bound <= kParcelRoom / static_cast<std::uint64_t>(size_ > 1 ? size_ - 1 : 1);
  }
  static constexpr std::uint64_t kParcelRoom = std::uint64_t{64} << 20;

  /// Ends the group and tells the others why, as far as they can be reached.
  void fail(const Error& cause) noexcept;
  /// What ended the group, if anything did.
  const std::optional<Error>& failure() const noexcept { return failure_; }

  const Traffic& traffic() const noexcept { return traffic_; }

 protected:
  Group(int rank, int size, std::chrono::milliseconds timeout)
      : rank_(rank), size_(size), timeout_(timeout) {}

  using Deadline = std::chrono::steady_clock::time_point;
  /// Peers are valid and messages not empty. Throws Error: peer_lost, timeout, peer_failed.
  virtual void do_exchange(std::span<const Outgoing> sends, std::span<const Incoming> receives,
                           Deadline deadline) = 0;
  /// As swap(), of more than one rank: from[r] is what rank r sent, and from[rank()] is left alone.
  /// Returns how many messages went to each peer: 1, or 2 where lengths went first. 0, with nothing
  /// sent, where the engine has no way of its own for this. The same on all ranks.
  virtual int do_swap(std::span<const std::span<const std::byte>> /*outgoing*/,
                      std::uint64_t /*bound*/, std::span<const std::uint64_t> /*next*/,
                      std::span<Parcel> /*from*/, Deadline /*deadline*/) {
    return 0;
  }
  /// Tells the other ranks, at best effort, that this one is giving up. Called at most once.
  virtual void announce(const Error& cause) noexcept = 0;

 private:
  /// Runs `work` as the one that uses the group. An exception of it ends the group.
  template <typename Work>
  void alone(Work&& work);

  int rank_;
  int size_;
  std::chrono::milliseconds timeout_;
  std::atomic<bool> busy_{false};
  Traffic traffic_;
  std::optional<Error> failure_;
};

inline constexpr std::chrono::milliseconds kDefaultTimeout{30'000};

/// The ranks of a group of threads, one for each thread. They share no state after the last is
/// gone.
std::vector<std::unique_ptr<Group>> make_local_groups(
    int size, std::chrono::milliseconds timeout = kDefaultTimeout);

/// Some ranks of `parent` as a group of their own: rank i is members[i]. The parent has to outlive
/// it; members include the parent's own rank. Traffic counts for both.
std::unique_ptr<Group> make_subgroup(Group& parent, std::vector<int> members);

}  // namespace dgc
