// Workers as processes, each connected with each over TCP by Gloo.
//
// Gloo gives the transport only; rendezvous, connecting (gloo_mesh.h), collectives and the handling
// of failures are ours:
// - Addresses travel through the store, so that a rank that never comes is known by its number.
// - A rank that gives up first writes its cause to the store ("failed.<rank>", the board) and then
//   closes its connections. Whoever finds a connection broken reads the board before it blames the
//   peer at the other end, and so all ranks report the first cause.
// - When a rank stalls, the others run out of time together, some of them waiting for each other.
//   Each writes whom it waits for ("late.<rank>"); the one that all of it leads to and that writes
//   nothing itself is the one to name.
// - A message longer than its receive makes Gloo abort the process. Sizes are therefore agreed on
//   before, by the collectives, or are below a bound that all ranks know (swap).
// - Gloo sends at once what the peer has said to have room for. Else it asks first, and one message
//   takes three delays. swap() therefore posts the receives of its next calls as soon as those of
//   this one have arrived. They have slots of their own: what else is exchanged between two calls
//   leaves them alone.
#include <fmt/format.h>
#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/transport/context.h>
#include <pthread.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <deque>
#include <optional>
#include <thread>
#include <utility>

#include "dgc/engines.h"
#include "engine/compiled.h"
#include "engine/ended.h"
#include "engine/gloo_board.h"
#include "engine/gloo_device.h"
#include "engine/gloo_mesh.h"
#include "engine/native.h"
#include "engine/parcel.h"
#include "engine/secret.h"

namespace dgc {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

/// How long a rank that lost a connection waits for the cause to appear on the board.
constexpr milliseconds kBoardWait{300};
// Kept of a deadline for it, at most: on a busy machine ranks that waited equally long are heard of
// far apart, and whoever has not been heard of is suspected.
constexpr milliseconds kBoardReserve{1000};
constexpr milliseconds kBoardPoll{10};
/// Gloo's slots of parcels count from here, those of other messages from 0.
constexpr std::uint64_t kParcelSlots = std::uint64_t{1} << 62;

/// Gloo writes to sockets without MSG_NOSIGNAL. While this lives, a broken connection raises no
/// SIGPIPE in this thread; one that was already pending stays so.
class NoSigpipe {
 public:
  NoSigpipe() {
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~NoSigpipe() {
    const timespec at_once{};
    while (!was_pending_ && sigtimedwait(&pipe_, nullptr, &at_once) == SIGPIPE) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoSigpipe(const NoSigpipe&) = delete;
  NoSigpipe& operator=(const NoSigpipe&) = delete;

 private:
  sigset_t pipe_;
  sigset_t before_;
  bool was_pending_ = false;
};

milliseconds until(Clock::time_point deadline) {
  // Never negative: -1 means "forever" to Gloo.
  return std::max(milliseconds(0),
                  std::chrono::duration_cast<milliseconds>(deadline - Clock::now()));
}

class GlooGroup final : public Group {
 public:
  GlooGroup(std::shared_ptr<RendezvousStore> store, const GlooOptions& options)
      : Group(options.rank, options.size, options.timeout),
        board_(std::move(store), options.name, options.rank, options.size),
        host_(options.host_id.empty() ? this_host() : options.host_id),
        sent_(static_cast<std::size_t>(options.size)),
        received_(static_cast<std::size_t>(options.size)) {}

  ~GlooGroup() override {
    posted_.clear();
    mesh_.reset();
    if (joined_) board_.leave();
  }

  std::string_view engine() const noexcept override { return "gloo"; }
  std::string host() const override { return host_; }
  bool is_open_to_strangers() const {
    return mesh_ && (mesh_->is_open_to_strangers() || board_.is_open_to_strangers());
  }

  /// The sum of all ranks, by Gloo's own ring.
  void reduce_by_ring(std::span<float> values) {
    if (failure()) throw ended_earlier(*failure());
    if (size() == 1 || values.empty()) return;
    const NoSigpipe guard;
    gloo::AllreduceOptions options(mesh_);
    options.setOutput(values.data(), values.size());
    options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
    options.setReduceFunction([](void* sum, const void* a, const void* b, std::size_t count) {
      gloo::sum<float>(sum, a, b, count);
    });
    options.setTimeout(timeout());
    try {
      gloo::allreduce(options);
    } catch (const std::exception& error) {
      const Error wrapped(ErrorCode::peer_lost, "allreduce", fmt::format("rank {}", rank()),
                          detail::readable(error.what()));
      fail(wrapped);
      throw Error(wrapped);
    }
  }

  void join(const GlooOptions& options) {
    const auto deadline = Clock::now() + timeout();
    board_.check_unused();
    joined_ = true;
    try {
      const NoSigpipe guard;
      mesh_ = std::make_shared<detail::Mesh>(options, detail::make_device(options),
                                             detail::secret_or_environment(options.secret));
      board_.put_address(mesh_->address());
      std::vector<std::vector<std::byte>> theirs(static_cast<std::size_t>(size()));
      for (int peer = 0; peer < size(); ++peer) {
        if (peer != rank()) theirs[static_cast<std::size_t>(peer)] = address_of(peer, deadline);
      }
      for (int peer = 0; peer < size(); ++peer) {
        if (peer != rank()) mesh_->check_reachable(peer, theirs[static_cast<std::size_t>(peer)]);
      }
      // As much time as the addresses had.
      mesh_->connect(theirs, Clock::now() + timeout(), [&] { throw_cause_from_board(); });
    } catch (const Error& error) {
      fail(error);
      throw;
    } catch (const std::exception& error) {
      const Error wrapped(ErrorCode::engine_unavailable, "gloo", fmt::format("rank {}", rank()),
                          detail::readable(error.what()));
      fail(wrapped);
      throw Error(wrapped);
    }
  }

 protected:
  void do_exchange(std::span<const Outgoing> sends, std::span<const Incoming> receives,
                   Deadline deadline) override {
    // The last part of the time is kept for the board.
    const Deadline last_wait = deadline - std::min(kBoardReserve, timeout() / 4);
    const NoSigpipe guard;
    Transfers transfers;
    try {
      for (const Incoming& receive : receives) {
        auto& buffer = transfers.begin(transfers.in, receive.peer, buffer_of(receive.bytes));
        buffer.recv(receive.peer, received_[static_cast<std::size_t>(receive.peer)]++);
      }
      for (const Outgoing& send : sends) {
        auto& buffer = transfers.begin(transfers.out, send.peer, buffer_of(send.bytes));
        buffer.send(send.peer, sent_[static_cast<std::size_t>(send.peer)]++);
      }
      transfers.wait_for_all_in(last_wait);
      transfers.wait_for_all_out(last_wait);
    } catch (const std::exception& error) {
      lost(transfers, Clock::now() >= last_wait, error.what(), deadline);
    }
  }

  int do_swap(std::span<const std::span<const std::byte>> outgoing, std::uint64_t bound,
              std::span<const std::uint64_t> next, std::span<Parcel> from,
              Deadline deadline) override {
    const Deadline last_wait = deadline - std::min(kBoardReserve, timeout() / 4);
    const NoSigpipe guard;
    // Where room was made for less than is needed now, lengths go there alone. All ranks see that.
    const bool whole = posted_.empty() || posted_.front().bound >= bound;
    const std::vector<SharedBytes> parcels = with_lengths(outgoing, whole);
    Posted arrived;
    Transfers& transfers = arrived.transfers;
    try {
      if (posted_.empty()) post(bound);
      arrived = std::move(posted_.front());
      posted_.pop_front();
      for (int peer = 0; peer < size(); ++peer) {
        if (peer == rank()) continue;
        transfers.begin(transfers.out, peer, buffer_of(*parcels[static_cast<std::size_t>(peer)]))
            .send(peer, kParcelSlots + parcels_);
      }
      ++parcels_;
      transfers.wait_for_all_in(last_wait);
      post_next(next);
      transfers.wait_for_all_out(last_wait);
    } catch (const std::exception& error) {
      // Nothing was sent yet: it was a receive that could not be posted.
      if (transfers.peer < 0 && !posted_.empty()) transfers.peer = posted_.back().transfers.peer;
      posted_.clear();
      lost(transfers, Clock::now() >= last_wait, error.what(), deadline);
    }
    std::vector<Outgoing> sends;
    std::vector<Incoming> receives;
    for (std::size_t i = 0; i < arrived.rooms.size(); ++i) {
      const int peer = transfers.in[i].peer;
      ParcelHeader theirs = 0;
      std::memcpy(&theirs, arrived.rooms[i].get(), sizeof theirs);
      check_parcel(world_rank(peer), theirs, bound);
      Parcel& parcel = from[static_cast<std::size_t>(peer)];
      const std::span<const std::byte> mine = outgoing[static_cast<std::size_t>(peer)];
      if (whole) {
        parcel = {{arrived.rooms[i].get() + sizeof theirs, theirs}, arrived.rooms[i]};
        continue;
      }
      const auto room = std::make_shared_for_overwrite<std::byte[]>(theirs);
      parcel = {{room.get(), theirs}, room};
      if (!mine.empty()) sends.push_back({peer, mine});
      if (theirs > 0) receives.push_back({peer, {room.get(), theirs}});
    }
    if (!whole) do_exchange(sends, receives, deadline);
    return whole ? 1 : 2;
  }

  void announce(const Error& cause) noexcept override {
    if (!joined_) return;
    board_.announce(cause);
    close_connections();
  }

 private:
  using Buffer = std::unique_ptr<gloo::transport::UnboundBuffer>;
  using SharedBytes = std::shared_ptr<const std::vector<std::byte>>;

  /// Messages under way.
  struct Transfers {
    struct One {
      int peer;
      Buffer buffer;
    };
    std::vector<One> in;
    std::vector<One> out;
    std::size_t received = 0;  // of `in`, waited for so far
    int peer = -1;             // whom the last call dealt with

    gloo::transport::UnboundBuffer& begin(std::vector<One>& where, int with, Buffer buffer) {
      peer = with;
      return *where.emplace_back(One{with, std::move(buffer)}).buffer;
    }
    void wait_for_all_in(Deadline deadline) {
      for (; received < in.size(); ++received) {
        peer = in[received].peer;
        in[received].buffer->waitRecv(until(deadline));
      }
    }
    void wait_for_all_out(Deadline deadline) {
      for (const One& one : out) {
        peer = one.peer;
        one.buffer->waitSend(until(deadline));
      }
    }
    /// The peer that was dealt with and, if `all`, the others that have sent nothing.
    std::vector<int> waiting(bool all) const {
      std::vector<int> peers{peer};
      for (std::size_t i = received + 1; all && i < in.size(); ++i) {
        if (!arrived(*in[i].buffer)) peers.push_back(in[i].peer);
      }
      return peers;
    }
  };

  /// Receives of a swap(), with the memory they go to.
  struct Posted {
    std::uint64_t bound = 0;
    std::vector<std::shared_ptr<std::byte[]>> rooms;  // of transfers.in, which refer to them
    Transfers transfers;
  };

  void post(std::uint64_t bound) {
    const std::uint64_t slot = kParcelSlots + parcels_ + posted_.size();
    Posted& posted = posted_.emplace_back();
    posted.bound = bound;
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank()) continue;
      const std::size_t bytes = sizeof(ParcelHeader) + bound;
      // Not set to zero: most of it is never touched.
      auto& room = posted.rooms.emplace_back(std::make_shared_for_overwrite<std::byte[]>(bytes));
      Transfers& transfers = posted.transfers;
      transfers.begin(transfers.in, peer, buffer_of({room.get(), bytes})).recv(peer, slot);
    }
  }

  /// Each message behind its length, or the lengths alone. What goes to several is copied once.
  static std::vector<SharedBytes> with_lengths(std::span<const std::span<const std::byte>> outgoing,
                                               bool whole) {
    std::vector<SharedBytes> parcels;
    for (std::size_t r = 0; r < outgoing.size(); ++r) {
      const std::span<const std::byte> message = outgoing[r];
      if (r > 0 && message.data() == outgoing[r - 1].data() &&
          message.size() == outgoing[r - 1].size()) {
        parcels.push_back(parcels.back());
        continue;
      }
      const ParcelHeader length = message.size();
      std::vector<std::byte> bytes;
      bytes.reserve(sizeof length + (whole ? message.size() : 0));
      const auto header = std::as_bytes(std::span(&length, 1));
      bytes.insert(bytes.end(), header.begin(), header.end());
      if (whole) bytes.insert(bytes.end(), message.begin(), message.end());
      parcels.push_back(std::make_shared<const std::vector<std::byte>>(std::move(bytes)));
    }
    return parcels;
  }

  /// This call has all that it needs. A connection that is broken by now ends the next one.
  void post_next(std::span<const std::uint64_t> bounds) noexcept {
    try {
      while (posted_.size() < bounds.size()) post(bounds[posted_.size()]);
    } catch (const std::exception&) {
      posted_.clear();
    }
  }

  Buffer buffer_of(std::span<const std::byte> bytes) {
    // A send only reads: Gloo has one type for both directions.
    return mesh_->createUnboundBuffer(const_cast<std::byte*>(bytes.data()), bytes.size());
  }

  std::vector<std::byte> address_of(int peer, Clock::time_point deadline) {
    for (;;) {
      if (auto found = board_.address_of(peer, std::min(until(deadline), kBoardWait))) {
        return std::move(*found);
      }
      throw_cause_from_board();
      if (Clock::now() < deadline) continue;
      throw Error(ErrorCode::timeout, "rendezvous", fmt::format("rank {}", peer),
                  fmt::format("did not come within {} ms", timeout().count()),
                  fmt::format("are all {} ranks started, with the same store?", size()));
    }
  }

  static bool arrived(gloo::transport::UnboundBuffer& buffer) {
    try {
      return buffer.waitRecv(milliseconds(0));
    } catch (const std::exception&) {
      return false;
    }
  }

  /// What to say when a wait failed, because a connection broke or because it is `late`. After it
  /// Gloo touches no memory of the caller's.
  [[noreturn]] void lost(Transfers& transfers, bool late, std::string_view text,
                         Deadline deadline) {
    const std::vector<int> waiting = transfers.waiting(late);
    transfers = {};
    if (late) board_.note_late(waiting);
    // One whose connection broke may be ahead of the cause by the time it takes to write a file.
    const Deadline patience = late ? deadline : std::min(Clock::now() + kBoardWait, deadline);
    for (;;) {
      throw_cause_from_board();
      if (Clock::now() >= patience) break;
      std::this_thread::sleep_for(kBoardPoll);
    }
    const int suspect = board_.culprit(waiting);
    const std::string subject = fmt::format("rank {}", suspect);
    if (late || suspect != waiting.front()) {
      throw Error(ErrorCode::timeout, "exchange", subject,
                  fmt::format("did not answer for {} ms", timeout().count()));
    }
    throw Error(ErrorCode::peer_lost, "exchange", subject,
                fmt::format("the connection broke: {}", detail::readable(text)));
  }

  /// Throws Error(peer_failed) if another rank has given up.
  void throw_cause_from_board() {
    const std::optional<Error> cause = board_.cause();
    if (!cause) return;
    // The others find this rank gone, look at the board, and read the same.
    close_connections();
    throw Error(*cause);
  }

  void close_connections() noexcept {
    if (!mesh_) return;
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank()) continue;
      try {
        if (auto& pair = mesh_->getPair(peer)) pair->close();
      } catch (const std::exception&) {
        // Closed already.
      }
    }
  }

  detail::Board board_;
  std::string host_;
  std::shared_ptr<detail::Mesh> mesh_;
  std::vector<std::uint64_t> sent_;      // messages so far to each peer: Gloo's slots
  std::vector<std::uint64_t> received_;  // from each peer
  std::uint64_t parcels_ = 0;            // swaps so far
  std::deque<Posted> posted_;            // for the next ones, as far as they were known
  bool joined_ = false;                  // has keys of its own in the store
};

}  // namespace

bool detail::has_gloo() noexcept { return true; }

bool native_all_reduce(Group& group, std::span<float> values) {
  auto* const gloo = dynamic_cast<GlooGroup*>(&group);
  if (gloo != nullptr) gloo->reduce_by_ring(values);
  return gloo != nullptr;
}

bool is_open_to_strangers(const Group& group) noexcept {
  const auto* const gloo = dynamic_cast<const GlooGroup*>(&group);
  return gloo != nullptr && gloo->is_open_to_strangers();
}

std::unique_ptr<Group> make_gloo_group(std::shared_ptr<RendezvousStore> store,
                                       const GlooOptions& options) {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    throw Error(ErrorCode::invalid_argument, "gloo",
                fmt::format("rank {} of {}", options.rank, options.size), "does not exist",
                "ranks count from 0");
  }
  if (options.size > 1 && !store) {
    throw Error(ErrorCode::invalid_argument, "gloo", "store", "is missing",
                "processes need a place to find each other, e.g. make_file_store");
  }
  auto group = std::make_unique<GlooGroup>(std::move(store), options);
  if (options.size > 1) group->join(options);
  return group;
}

}  // namespace dgc
