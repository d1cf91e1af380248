// Workers as processes of one machine, through shared memory (shared_memory.h).
//
// A message is its length and its bytes, through the ring from its sender to its receiver. A call
// moves all its messages on as far as it can, and sleeps when none moves. Whoever puts the last
// message that a sleeper waits for, or takes something out of a ring that a sleeper found full,
// wakes it: one wake-up for each rank and call, however many messages it has. Who finds everything
// there does not enter the kernel at all.
//
// Failures:
// - A rank that gives up is the first to write its number (claim_failure), or reads who was. So all
//   ranks report the same cause.
// - A rank that was killed has lost its lock. Sleepers ask for that now and then.
// - When a rank stalls, others wait for it and for each other. Who waits for whom is seen in the
//   boxes; the one that all of it leads to and that waits for nothing is the one to name.
#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cstring>

#include "dgc/engines.h"
#include "engine/parcel.h"
#include "engine/shared_memory.h"

namespace dgc {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using detail::Box;

/// How often a sleeper looks whether the others are alive.
constexpr milliseconds kLook{100};
/// Looking again and again before going to sleep: about as long as going to sleep takes.
constexpr int kLooksBeforeSleep = 2000;

struct Sending {
  int peer;
  ParcelHeader length;
  std::span<const std::byte> bytes;
  std::size_t done = 0;  // of length and bytes together

  bool is_done() const { return done == sizeof length + bytes.size(); }
};

struct Receiving {
  int peer;
  std::span<std::byte> bytes = {};  // known when the length has come
  ParcelHeader length = 0;
  std::size_t done = 0;

  bool has_length() const { return done >= sizeof length; }
  bool is_done() const { return has_length() && done == sizeof length + bytes.size(); }
};

int free_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return ::sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

std::string name_of(int rank) { return fmt::format("rank {}", rank); }

class SharedGroup final : public Group {
 public:
  explicit SharedGroup(const SharedOptions& options)
      : Group(options.rank, options.size, options.timeout),
        host_(options.host_id.empty() ? this_host() : options.host_id),
        // Where ranks have no core each, who looks takes time from who computes.
        looks_(options.size <= free_cores() ? kLooksBeforeSleep : 0) {}

  ~SharedGroup() override {
    if (!memory_) return;
    memory_->seat(rank()).present = detail::kGone;
    wake_others();
  }

  std::string_view engine() const noexcept override { return "shared"; }
  std::string host() const override { return host_; }

  void join(RendezvousStore& store, const std::string& name) {
    const Deadline deadline = Clock::now() + timeout();
    const std::string key = name + "/shared";
    if (rank() == 0) {
      if (store.try_get(key)) {
        throw Error(ErrorCode::invalid_argument, "rendezvous", name_of(rank()),
                    fmt::format("the store has '{}' already", key),
                    "every run needs a store or a name of its own");
      }
      memory_ = std::make_unique<detail::SharedMemory>(size());
      const std::string address = memory_->address();
      store.set(key, std::as_bytes(std::span(address)));
    } else {
      const auto address = store.get(key, timeout());
      if (!address) missing(0);
      memory_ = std::make_unique<detail::SharedMemory>(
          std::string(reinterpret_cast<const char*>(address->data()), address->size()), rank(),
          size());
    }
    memory_->seat(rank()).present = detail::kJoined;
    wake_others();
    try {
      wait_for_all(deadline);
    } catch (const Error& error) {
      fail(error);
      throw;
    }
    if (rank() == 0) store.remove(key);
  }

 protected:
  void do_exchange(std::span<const Outgoing> sends, std::span<const Incoming> receives,
                   Deadline deadline) override {
    std::vector<Sending> out;
    for (const Outgoing& send : sends) out.push_back({send.peer, send.bytes.size(), send.bytes});
    std::vector<Receiving> in;
    for (const Incoming& receive : receives) in.push_back({receive.peer});
    move(out, in, deadline, [&](Receiving& arriving, std::size_t i) {
      arriving.bytes = receives[i].bytes;
      if (arriving.length == arriving.bytes.size()) return;
      throw Error(ErrorCode::bad_length, "receive", name_of(arriving.peer),
                  fmt::format("sent {} bytes, {} expected", arriving.length, arriving.bytes.size()),
                  "all ranks must make the same calls in the same order");
    });
  }

  int do_swap(std::span<const std::span<const std::byte>> outgoing, std::uint64_t bound,
              std::span<const std::uint64_t> /*next*/, std::span<Parcel> from,
              Deadline deadline) override {
    std::vector<Sending> out;
    std::vector<Receiving> in;
    // Beginning after one's own: ranks then do not all turn to rank 0 first.
    for (int i = 1; i < size(); ++i) {
      const int peer = (rank() + i) % size();
      const auto bytes = outgoing[static_cast<std::size_t>(peer)];
      out.push_back({peer, bytes.size(), bytes});
      in.push_back({peer});
    }
    move(out, in, deadline, [&](Receiving& arriving, std::size_t) {
      check_parcel(world_rank(arriving.peer), arriving.length, bound);
      auto memory = std::make_shared_for_overwrite<std::byte[]>(arriving.length);
      arriving.bytes = {memory.get(), arriving.length};
      from[static_cast<std::size_t>(arriving.peer)] = {arriving.bytes, std::move(memory)};
    });
    return 1;
  }

  void announce(const Error& cause) noexcept override {
    if (!memory_) return;
    memory_->claim_failure(rank(), cause.what());
    wake_others();
  }

 private:
  void wake_others() const noexcept {
    for (int peer = 0; peer < size(); ++peer) {
      if (peer != rank()) memory_->ring_bell(peer);
    }
  }

  [[noreturn]] void missing(int peer) const {
    throw Error(ErrorCode::timeout, "rendezvous", name_of(peer),
                fmt::format("did not come within {} ms", timeout().count()),
                fmt::format("are all {} ranks started, with the same store?", size()));
  }

  void wait_for_all(Deadline deadline) {
    for (int peer = 0; peer < size(); ++peer) {
      for (;;) {
        const std::uint32_t seen = memory_->seat(rank()).bell;
        if (memory_->seat(peer).present != detail::kAbsent) break;
        throw_cause();
        for (int other = 0; other < size(); ++other) throw_if_lost(other);
        if (Clock::now() >= deadline) missing(peer);
        memory_->sleep(rank(), seen, std::min<Clock::duration>(kLook, deadline - Clock::now()));
      }
    }
  }

  /// Until all are done. `make_room` gets a message whose length has come, and its number.
  template <typename MakeRoom>
  void move(std::vector<Sending>& out, std::vector<Receiving>& in, Deadline deadline,
            MakeRoom&& make_room) {
    const auto step = [&] {
      bool moved = false;
      for (Sending& sending : out) moved |= send(sending);
      for (std::size_t i = 0; i < in.size(); ++i) moved |= receive(in[i], i, make_room);
      return moved;
    };
    const auto done = [&] {
      return std::all_of(out.begin(), out.end(), [](const auto& s) { return s.is_done(); }) &&
             std::all_of(in.begin(), in.end(), [](const auto& r) { return r.is_done(); });
    };
    auto next_look = Clock::now() + kLook;
    int looks = looks_;
    for (;;) {
      if (step()) {
        if (done()) return;
        looks = looks_;
        continue;
      }
      if (done()) return;
      if (looks-- > 0) {
        pause();
        continue;
      }
      // What comes after this rings the bell; what came before is found by the step below.
      const std::uint32_t seen = memory_->seat(rank()).bell;
      const std::vector<int> waiting = mark(out, in);
      const bool look = Clock::now() >= next_look;
      std::vector<int> lost;
      for (const int peer : waiting) {
        if (is_gone(peer) || (look && !memory_->is_alive(peer))) lost.push_back(peer);
      }
      // What has arrived counts, even if its sender has failed or is gone by now.
      if (!step()) {
        throw_cause();
        for (const int peer : lost) throw_lost(peer);
        const auto now = Clock::now();
        if (now >= deadline) late(waiting);
        memory_->sleep(rank(), seen, std::min<Clock::duration>(kLook, deadline - now));
      }
      if (look) next_look = Clock::now() + kLook;
      unmark(out, in);
      looks = looks_;
    }
  }

  static void pause() noexcept {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }

  bool send(Sending& sending) {
    const std::size_t before = sending.done;
    const auto put = [&](std::span<const std::byte> bytes) {
      const std::size_t count = memory_->put(rank(), sending.peer, bytes);
      sending.done += count;
      return count == bytes.size();
    };
    if (sending.is_done()) return false;
    constexpr std::size_t kHead = sizeof sending.length;
    if (sending.done >= kHead ||
        put(std::as_bytes(std::span(&sending.length, 1)).subspan(sending.done))) {
      put(sending.bytes.subspan(sending.done - kHead));
    }
    if (sending.done == before) return false;
    Box& box = memory_->box(rank(), sending.peer);
    const bool full = !sending.is_done() && memory_->is_full(rank(), sending.peer);
    if ((sending.is_done() || full) && box.wants_message.load() != 0 &&
        box.wants_message.exchange(0) != 0) {
      const bool last = memory_->seat(sending.peer).wanted.fetch_sub(1) == 1;
      if (last || full) memory_->ring_bell(sending.peer);
    }
    return true;
  }

  template <typename MakeRoom>
  bool receive(Receiving& receiving, std::size_t number, MakeRoom&& make_room) {
    const std::size_t before = receiving.done;
    const auto take = [&](std::span<std::byte> bytes) {
      if (!bytes.empty()) receiving.done += memory_->take(receiving.peer, rank(), bytes);
    };
    if (receiving.is_done()) return false;
    if (!receiving.has_length()) {
      take(std::as_writable_bytes(std::span(&receiving.length, 1)).subspan(receiving.done));
      if (receiving.has_length()) make_room(receiving, number);
    }
    if (receiving.has_length()) {
      take(receiving.bytes.subspan(receiving.done - sizeof receiving.length));
    }
    if (receiving.done == before) return false;
    Box& box = memory_->box(receiving.peer, rank());
    if (box.wants_room.load() != 0 && box.wants_room.exchange(0) != 0) {
      memory_->ring_bell(receiving.peer);
    }
    return true;
  }

  /// Says what this rank waits for; returns for whom. The marks stay when the group ends, for
  /// others that look for who is to blame.
  std::vector<int> mark(const std::vector<Sending>& out, const std::vector<Receiving>& in) const {
    std::vector<int> waiting;
    const auto wanted = static_cast<std::uint32_t>(
        std::count_if(in.begin(), in.end(), [](const auto& r) { return !r.is_done(); }));
    // Before the marks: whoever finds one counts down from it.
    memory_->seat(rank()).wanted = wanted;
    for (const Receiving& receiving : in) {
      if (receiving.is_done()) continue;
      memory_->box(receiving.peer, rank()).wants_message = 1;
      waiting.push_back(receiving.peer);
    }
    for (const Sending& sending : out) {
      if (sending.is_done()) continue;
      memory_->box(rank(), sending.peer).wants_room = 1;
      waiting.push_back(sending.peer);
    }
    return waiting;
  }

  void unmark(const std::vector<Sending>& out, const std::vector<Receiving>& in) const {
    for (const Receiving& receiving : in) {
      memory_->box(receiving.peer, rank()).wants_message = 0;
    }
    for (const Sending& sending : out) memory_->box(rank(), sending.peer).wants_room = 0;
  }

  bool is_gone(int peer) const { return memory_->seat(peer).present == detail::kGone; }

  void throw_cause() const {
    const int failed = memory_->failed();
    if (failed < 0 || failed == rank()) return;
    throw Error(ErrorCode::peer_failed, "exchange", name_of(failed),
                std::string("gave up: ") + memory_->seat(failed).cause);
  }

  void throw_if_lost(int peer) const {
    if (peer == rank() || memory_->seat(peer).present == detail::kAbsent) return;
    if (is_gone(peer) || !memory_->is_alive(peer)) throw_lost(peer);
  }

  [[noreturn]] void throw_lost(int peer) const {
    throw Error(ErrorCode::peer_lost, "exchange", name_of(peer),
                is_gone(peer) ? "left the group" : "its process has ended");
  }

  [[noreturn]] void late(const std::vector<int>& waiting) const {
    int suspect = waiting.front();
    for (int step = 0; step < size(); ++step) {
      const int next = waits_for(suspect);
      if (next < 0) break;
      // In a circle: calls in different orders.
      if (next == rank() || step + 1 == size()) {
        suspect = waiting.front();
        break;
      }
      suspect = next;
    }
    throw Error(ErrorCode::timeout, "exchange", name_of(suspect),
                fmt::format("did not answer for {} ms", timeout().count()));
  }

  /// Somebody whom `other` waits for, or -1.
  int waits_for(int other) const {
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == other) continue;
      if (memory_->box(peer, other).wants_message != 0) return peer;
      if (memory_->box(other, peer).wants_room != 0) return peer;
    }
    return -1;
  }

  std::string host_;
  int looks_;
  std::unique_ptr<detail::SharedMemory> memory_;
};

}  // namespace

std::unique_ptr<Group> make_shared_group(std::shared_ptr<RendezvousStore> store,
                                         const SharedOptions& options) {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    throw Error(ErrorCode::invalid_argument, "shared",
                fmt::format("rank {} of {}", options.rank, options.size), "does not exist",
                "ranks count from 0");
  }
  if (options.size > 1 && !store) {
    throw Error(ErrorCode::invalid_argument, "shared", "store", "is missing",
                "processes need a place to find each other, e.g. make_file_store");
  }
  auto group = std::make_unique<SharedGroup>(options);
  if (options.size > 1) group->join(*store, options.name);
  return group;
}

}  // namespace dgc
