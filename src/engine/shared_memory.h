// The memory in which workers of one machine meet: a seat for each rank, and a box for each
// direction between two ranks.
//
// It is a memfd of rank 0. It has no name in any folder, so that nothing is left when all ranks are
// killed, and only processes of the same user can open it, by way of /proc. Each rank keeps a lock
// (fcntl, of the open file) on the byte of its number: the kernel lets go of it, however the rank
// ends, and the others can ask.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace dgc::detail {

using Word = std::atomic<std::uint32_t>;
using Count = std::atomic<std::uint64_t>;
static_assert(Word::is_always_lock_free && Count::is_always_lock_free);

/// What others know of a rank.
struct alignas(64) Seat {
  Word bell;     // rises whenever the rank should look again; it sleeps on this (futex)
  Word wanted;   // messages that have to come before it is worth waking it
  Word present;  // kAbsent, kJoined or kGone
  char cause[2048];
};
inline constexpr std::uint32_t kAbsent = 0, kJoined = 1, kGone = 2;

/// A stream of bytes from one rank to another, through a ring. Each end has a line of the cache.
struct Box {
  alignas(64) Count written;  // bytes ever put in
  Word wants_room;            // 1: the sender sleeps until something is taken out
  alignas(64) Count taken;    // bytes ever taken out
  Word wants_message;  // 1: the receiver sleeps until a message is complete, or the ring full
};

class SharedMemory {
 public:
  /// A new one, for rank 0. Throws Error(io).
  explicit SharedMemory(int size);
  /// The one that `address` leads to, for another rank. Throws Error: peer_lost if it is gone,
  /// invalid_argument if it is on another machine, of another size, or if the rank is taken.
  SharedMemory(const std::string& address, int rank, int size);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  /// Where other ranks find it.
  std::string address() const;

  Seat& seat(int rank) const;
  Box& box(int from, int to) const;
  /// Copies as much of `bytes` into the ring as there is room for. Returns how much that was.
  std::size_t put(int from, int to, std::span<const std::byte> bytes) const;
  /// Copies as much as has come, at most bytes.size(). Returns how much that was.
  std::size_t take(int from, int to, std::span<std::byte> bytes) const;
  bool is_full(int from, int to) const;

  /// The first rank that gave up, or -1.
  int failed() const;
  /// Whether nobody was earlier. `cause` is what others read in the rank's seat.
  bool claim_failure(int rank, const std::string& cause) const;

  /// Whether the process of a rank that has joined still runs.
  bool is_alive(int rank) const;

  void ring_bell(int rank) const;
  /// Sleeps until the bell of `rank` is no longer at `seen`, at most so long.
  void sleep(int rank, std::uint32_t seen, std::chrono::nanoseconds most) const;

 private:
  struct Head;

  void map();
  void lock(int rank) const;
  void close() noexcept;
  std::byte* ring(int from, int to) const;
  std::size_t pair(int from, int to) const;

  int size_;
  std::size_t ring_ = 0;  // bytes of each
  int file_ = -1;
  std::size_t bytes_ = 0;
  std::byte* memory_ = nullptr;
};

}  // namespace dgc::detail
