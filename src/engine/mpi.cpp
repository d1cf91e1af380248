// The processes of an mpirun. Messages are polled for, because MPI has no waits with a deadline.
//
// A rank that gives up sends its cause on a second communicator (the board), which the others look
// at while they wait. Whether it arrives is up to MPI.
#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <thread>

#include "dgc/engines.h"
#include "engine/compiled.h"
#include "engine/parcel.h"

namespace dgc {
namespace {

using Clock = std::chrono::steady_clock;

/// Longest single message: MPI counts in int.
constexpr std::size_t kChunk = std::size_t{1} << 30;
constexpr int kPollsBeforeSleep = 200;
constexpr std::chrono::microseconds kSleep{50};
constexpr std::chrono::milliseconds kAnnouncing{100};
constexpr std::size_t kLongestCause = 2000;  // sent without waiting for the receiver ("eager")

std::string text_of(int code) {
  std::string text(MPI_MAX_ERROR_STRING, '\0');
  int length = 0;
  if (MPI_Error_string(code, text.data(), &length) != MPI_SUCCESS) return "unknown MPI error";
  text.resize(static_cast<std::size_t>(length));
  return text;
}

void check(int code, const char* operation, const std::string& subject) {
  if (code == MPI_SUCCESS) return;
  throw Error(ErrorCode::peer_lost, operation, subject, text_of(code));
}

/// MPI can be initialised once in a process, so that it lasts until exit.
class Runtime {
 public:
  static Runtime& get() {
    static Runtime runtime;
    return runtime;
  }
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  bool usable() const { return !stuck_; }
  /// Requests may be in flight whose buffers are gone, and finalising may wait for a dead rank.
  void set_stuck() { stuck_ = true; }
  /// MPI may read a message that nobody takes as long as the process lives.
  const std::string& keep(std::string text) { return kept_.emplace_back(std::move(text)); }
  void keep(std::shared_ptr<std::byte[]> room) { rooms_.push_back(std::move(room)); }

 private:
  Runtime() {
    int initialised = 0;
    MPI_Initialized(&initialised);
    if (initialised != 0) return;
    int provided = 0;
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "mpi", "start");
    ours_ = true;
  }
  ~Runtime() {
    int finalised = 0;
    MPI_Finalized(&finalised);
    if (ours_ && !stuck_ && finalised == 0) MPI_Finalize();
  }

  std::deque<std::string> kept_;
  std::vector<std::shared_ptr<std::byte[]>> rooms_;
  bool ours_ = false;
  bool stuck_ = false;
};

/// Calls `done` until it is true: often at first, then with short sleeps so that ranks that share
/// cores do not hinder each other. False at the deadline.
template <typename Done>
bool poll_until(Clock::time_point deadline, Done&& done) {
  for (int polls = 0;; ++polls) {
    if (done(polls)) return true;
    if (Clock::now() >= deadline) return false;
    if (polls < kPollsBeforeSleep) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kSleep);
    }
  }
}

/// A communicator of our own: messages of the caller and of other groups never meet ours.
class Communicator {
 public:
  explicit Communicator(Clock::time_point deadline) {
    // MPI writes the handle when all ranks have come, which may be after we gave up: not on a
    // stack.
    auto handle = std::make_unique<MPI_Comm>(MPI_COMM_NULL);
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Comm_idup(MPI_COMM_WORLD, handle.get(), &request), "mpi", "communicator");
    const bool made = poll_until(deadline, [&](int) {
      int flag = 0;
      check(MPI_Test(&request, &flag, MPI_STATUS_IGNORE), "mpi", "communicator");
      return flag != 0;
    });
    if (!made) {
      static_cast<void>(handle.release());
      Runtime::get().set_stuck();
      throw Error(ErrorCode::timeout, "mpi", "communicator", "not all ranks came",
                  "all processes of the mpirun make their groups at the same time");
    }
    handle_ = *handle;
    // Errors return to us; the caller's communicators keep their own way.
    MPI_Comm_set_errhandler(handle_, MPI_ERRORS_RETURN);
  }
  ~Communicator() {
    int finalised = 0;
    MPI_Finalized(&finalised);
    // Freeing is collective: with ranks gone it might wait for them.
    if (finalised == 0 && !abandoned_) MPI_Comm_free(&handle_);
  }
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  operator MPI_Comm() const { return handle_; }
  void abandon() { abandoned_ = true; }

 private:
  MPI_Comm handle_ = MPI_COMM_NULL;
  bool abandoned_ = false;
};

int rank_in_world() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}
int size_of_world() {
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}

class MpiGroup final : public Group {
 public:
  MpiGroup(std::chrono::milliseconds timeout, const std::string& host_id)
      : Group(rank_in_world(), size_of_world(), timeout),
        host_(host_id.empty() ? this_host() : host_id),
        data_(Clock::now() + timeout),
        parcels_(Clock::now() + timeout),
        board_(Clock::now() + timeout),
        sent_(static_cast<std::size_t>(size())),
        received_(static_cast<std::size_t>(size())) {
    int found = 0;
    void* value = nullptr;
    MPI_Comm_get_attr(data_, MPI_TAG_UB, &value, &found);
    if (found != 0) tags_ = static_cast<std::uint64_t>(*static_cast<int*>(value)) + 1;
    MPI_Query_thread(&thread_level_);
  }

  ~MpiGroup() override {
    int finalised = 0;
    MPI_Finalized(&finalised);
    for (Posted& posted : posted_) {
      if (finalised == 0 && !take_back(posted)) Runtime::get().set_stuck();
    }
    if (!failure()) return;
    data_.abandon();
    parcels_.abandon();
    board_.abandon();
  }

  std::string_view engine() const noexcept override { return "mpi"; }
  std::string host() const override { return host_; }

 protected:
  void do_exchange(std::span<const Outgoing> sends, std::span<const Incoming> receives,
                   Deadline deadline) override {
    check_thread();
    Requests requests;
    try {
      for (const Incoming& receive : receives) {
        const int tag = next_tag(received_, receive.peer);
        for (std::size_t begin = 0; begin < receive.bytes.size(); begin += kChunk) {
          const auto chunk =
              receive.bytes.subspan(begin, std::min(kChunk, receive.bytes.size() - begin));
          requests.add(receive.peer, chunk.size(), true);
          check(MPI_Irecv(chunk.data(), static_cast<int>(chunk.size()), MPI_BYTE, receive.peer, tag,
                          data_, &requests.handles.back()),
                "receive", fmt::format("rank {}", receive.peer));
        }
      }
      for (const Outgoing& send : sends) {
        const int tag = next_tag(sent_, send.peer);
        // Chunks share a tag: between two ranks MPI keeps the order.
        for (std::size_t begin = 0; begin < send.bytes.size(); begin += kChunk) {
          const auto chunk = send.bytes.subspan(begin, std::min(kChunk, send.bytes.size() - begin));
          requests.add(send.peer, chunk.size(), false);
          check(MPI_Isend(chunk.data(), static_cast<int>(chunk.size()), MPI_BYTE, send.peer, tag,
                          data_, &requests.handles.back()),
                "send", fmt::format("rank {}", send.peer));
        }
      }
      wait(requests, deadline);
    } catch (const Error& error) {
      abandon(requests, error);
      throw;
    }
  }

  /// MPI tells how long a message is. A long one goes out when its receive is known to be posted,
  /// and a short one that finds none is copied: so receives are posted ahead.
  int do_swap(std::span<const std::span<const std::byte>> outgoing, std::uint64_t bound,
              std::span<const std::uint64_t> next, std::span<Parcel> from,
              Deadline deadline) override {
    check_thread();
    // Where room was made for less than is needed now, lengths go there alone. All ranks see that.
    const bool whole = posted_.empty() || posted_.front().bound >= bound;
    std::vector<ParcelHeader> lengths;
    for (const auto& message : outgoing) lengths.push_back(message.size());
    Posted arrived;
    Requests sending;
    try {
      if (posted_.empty()) post(bound);
      arrived = std::move(posted_.front());
      posted_.pop_front();
      const int tag = static_cast<int>(swaps_++ % tags_);
      for (int peer = 0; peer < size(); ++peer) {
        if (peer == rank()) continue;
        const auto to = static_cast<std::size_t>(peer);
        const auto bytes = whole ? outgoing[to] : std::as_bytes(std::span(&lengths[to], 1));
        sending.add(peer, bytes.size(), false);
        check(MPI_Isend(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, peer, tag, parcels_,
                        &sending.handles.back()),
              "send", fmt::format("rank {}", peer));
      }
      wait(arrived.requests, deadline);
      while (posted_.size() < next.size()) post(next[posted_.size()]);
      wait(sending, deadline);
    } catch (const Error& error) {
      abandon(sending, error);
      abandon(arrived, error);
      throw;
    }
    std::vector<Outgoing> sends;
    std::vector<Incoming> receives;
    for (std::size_t i = 0; i < arrived.rooms.size(); ++i) {
      const int peer = arrived.requests.peers[i];
      const std::size_t length = arrived.requests.sizes[i];
      Parcel& parcel = from[static_cast<std::size_t>(peer)];
      if (whole) {
        check_parcel(world_rank(peer), length, bound);
        parcel = {{arrived.rooms[i].get(), length}, arrived.rooms[i]};
        continue;
      }
      ParcelHeader theirs = 0;
      if (length != sizeof theirs) throw_length(peer, fmt::format("{}", length), sizeof theirs);
      std::memcpy(&theirs, arrived.rooms[i].get(), sizeof theirs);
      check_parcel(world_rank(peer), theirs, bound);
      const auto room = std::make_shared_for_overwrite<std::byte[]>(theirs);
      parcel = {{room.get(), theirs}, room};
      const std::span<const std::byte> mine = outgoing[static_cast<std::size_t>(peer)];
      if (!mine.empty()) sends.push_back({peer, mine});
      if (theirs > 0) receives.push_back({peer, {room.get(), theirs}});
    }
    if (!whole) do_exchange(sends, receives, deadline);
    return whole ? 1 : 2;
  }

  void announce(const Error& cause) noexcept override {
    try {
      const std::string& text =
          Runtime::get().keep(std::string(cause.what()).substr(0, kLongestCause));
      std::vector<MPI_Request> requests(static_cast<std::size_t>(size()), MPI_REQUEST_NULL);
      for (int peer = 0; peer < size(); ++peer) {
        if (peer == rank()) continue;
        MPI_Isend(text.data(), static_cast<int>(text.size()), MPI_BYTE, peer, 0, board_,
                  &requests[static_cast<std::size_t>(peer)]);
      }
      poll_until(Clock::now() + kAnnouncing, [&](int) {
        int flag = 0;
        return MPI_Testall(size(), requests.data(), &flag, MPI_STATUSES_IGNORE) != MPI_SUCCESS ||
               flag != 0;
      });
    } catch (const std::exception&) {
      // Out of memory: the others find out by their deadlines.
    }
  }

 private:
  /// An MPI that the caller started may allow one thread only.
  void check_thread() const {
    if (thread_level_ >= MPI_THREAD_SERIALIZED || std::this_thread::get_id() == thread_) return;
    throw Error(ErrorCode::engine_unavailable, "mpi", "threads",
                "MPI was started for one thread, and another uses the group",
                "start it with MPI_Init_thread(…, MPI_THREAD_SERIALIZED, …), or leave it to dgc");
  }

  struct Requests {
    std::vector<MPI_Request> handles;
    std::vector<MPI_Status> statuses;
    std::vector<int> peers;
    std::vector<std::size_t> sizes;
    std::vector<bool> receive;
    std::vector<bool> exact;  // or else the size is the most that may come, and then what came

    void add(int peer, std::size_t size, bool is_receive, bool is_exact = true) {
      handles.push_back(MPI_REQUEST_NULL);
      peers.push_back(peer);
      sizes.push_back(size);
      receive.push_back(is_receive);
      exact.push_back(is_exact);
    }

    /// Takes back receives that nothing has arrived for. True if nothing is left in flight.
    bool cancel() {
      bool idle = true;
      for (std::size_t i = 0; i < handles.size(); ++i) {
        if (handles[i] == MPI_REQUEST_NULL) continue;
        if (receive[i]) MPI_Cancel(&handles[i]);
        int flag = 0;
        MPI_Test(&handles[i], &flag, MPI_STATUS_IGNORE);
        idle = idle && flag != 0;
      }
      return idle;
    }
  };

  /// Receives of a swap(), with the memory they go to.
  struct Posted {
    std::uint64_t bound = 0;
    std::vector<std::shared_ptr<std::byte[]>> rooms;  // of the requests, in their order
    Requests requests;
  };

  void post(std::uint64_t bound) {
    const int tag = static_cast<int>((swaps_ + posted_.size()) % tags_);
    Posted& posted = posted_.emplace_back();
    posted.bound = bound;
    const std::size_t bytes = std::max<std::size_t>(bound, sizeof(ParcelHeader));
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank()) continue;
      // Not set to zero: most of it is never touched.
      auto& room = posted.rooms.emplace_back(std::make_shared_for_overwrite<std::byte[]>(bytes));
      posted.requests.add(peer, bytes, true, false);
      check(MPI_Irecv(room.get(), static_cast<int>(bytes), MPI_BYTE, peer, tag, parcels_,
                      &posted.requests.handles.back()),
            "receive", fmt::format("rank {}", peer));
    }
  }

  /// True if nothing is left in flight. Memory that MPI may still write to stays.
  static bool take_back(Posted& posted) {
    if (posted.requests.cancel()) return true;
    for (auto& room : posted.rooms) Runtime::get().keep(std::move(room));
    return false;
  }

  static void abandon(Posted& posted, const Error& error) {
    if (!take_back(posted) || is_gone(error)) Runtime::get().set_stuck();
  }
  static void abandon(Requests& requests, const Error& error) {
    if (!requests.cancel() || is_gone(error)) Runtime::get().set_stuck();
  }
  /// A rank that failed can still answer. After other errors, finalising would wait for it.
  static bool is_gone(const Error& error) {
    return error.code() == ErrorCode::timeout || error.code() == ErrorCode::peer_lost;
  }

  int next_tag(std::vector<std::uint64_t>& counts, int peer) const {
    return static_cast<int>(counts[static_cast<std::size_t>(peer)]++ % tags_);
  }

  void wait(Requests& requests, Deadline deadline) {
    const int count = static_cast<int>(requests.handles.size());
    requests.statuses.resize(requests.handles.size());
    const bool done = poll_until(deadline, [&](int polls) {
      int flag = 0;
      const int code = MPI_Testall(count, requests.handles.data(), &flag, requests.statuses.data());
      if (code != MPI_SUCCESS) throw_failed(requests, code);
      if (flag == 0 && polls % 16 == 15) throw_cause_from_board();
      return flag != 0;
    });
    if (!done) {
      throw_cause_from_board();
      throw_late(requests);
    }
    for (std::size_t i = 0; i < requests.handles.size(); ++i) {
      int length = 0;
      if (!requests.receive[i]) continue;
      MPI_Get_count(&requests.statuses[i], MPI_BYTE, &length);
      if (!requests.exact[i]) {
        requests.sizes[i] = static_cast<std::size_t>(length);
      } else if (static_cast<std::size_t>(length) != requests.sizes[i]) {
        throw_length(requests.peers[i], fmt::format("{} bytes", length), requests.sizes[i]);
      }
    }
  }

  [[noreturn]] static void throw_length(int peer, const std::string& actual, std::size_t expected) {
    throw Error(ErrorCode::bad_length, "receive", fmt::format("rank {}", peer),
                fmt::format("sent {}, {} bytes expected", actual, expected),
                "all ranks must make the same calls in the same order");
  }

  [[noreturn]] static void throw_failed(const Requests& requests, int code) {
    for (std::size_t i = 0; code == MPI_ERR_IN_STATUS && i < requests.handles.size(); ++i) {
      const int error = requests.statuses[i].MPI_ERROR;
      if (error == MPI_SUCCESS || error == MPI_ERR_PENDING) continue;
      int kind = 0;
      MPI_Error_class(error, &kind);
      if (kind == MPI_ERR_TRUNCATE) throw_length(requests.peers[i], "more", requests.sizes[i]);
      check(error, "exchange", fmt::format("rank {}", requests.peers[i]));
    }
    throw Error(ErrorCode::peer_lost, "exchange", "", text_of(code));
  }

  [[noreturn]] void throw_late(const Requests& requests) const {
    // Receives come first in the list: a missing message says more than one not taken.
    for (std::size_t i = 0; i < requests.handles.size(); ++i) {
      int flag = 0;
      MPI_Request_get_status(requests.handles[i], &flag, MPI_STATUS_IGNORE);
      if (flag != 0) continue;
      throw Error(ErrorCode::timeout, "exchange", fmt::format("rank {}", requests.peers[i]),
                  fmt::format("{} for {} ms",
                              requests.receive[i] ? "sent nothing" : "took nothing that was sent",
                              timeout().count()));
    }
    throw Error(ErrorCode::timeout, "exchange", "", "was only just too late");
  }

  /// Throws Error(peer_failed) if another rank has given up.
  void throw_cause_from_board() {
    int flag = 0;
    MPI_Status status;
    if (MPI_Iprobe(MPI_ANY_SOURCE, 0, board_, &flag, &status) != MPI_SUCCESS || flag == 0) return;
    int length = 0;
    MPI_Get_count(&status, MPI_BYTE, &length);
    std::string cause(static_cast<std::size_t>(std::max(length, 0)), '\0');
    MPI_Recv(cause.data(), length, MPI_BYTE, status.MPI_SOURCE, 0, board_, MPI_STATUS_IGNORE);
    throw Error(ErrorCode::peer_failed, "exchange", fmt::format("rank {}", status.MPI_SOURCE),
                "gave up: " + cause);
  }

  std::string host_;
  const std::thread::id thread_ = std::this_thread::get_id();
  int thread_level_ = MPI_THREAD_SINGLE;
  Communicator data_;
  Communicator parcels_;  // of swap(): what comes in between takes none of its receives
  Communicator board_;
  std::vector<std::uint64_t> sent_;  // messages so far to each peer: tags
  std::vector<std::uint64_t> received_;
  std::uint64_t tags_ = 32768;  // what the standard promises
  std::uint64_t swaps_ = 0;     // so far: tags
  std::deque<Posted> posted_;   // for the next swaps
};

}  // namespace

bool detail::has_mpi() noexcept { return true; }

std::unique_ptr<Group> make_mpi_group(std::chrono::milliseconds timeout,
                                      const std::string& host_id) {
  int finalised = 0;
  MPI_Finalized(&finalised);
  if (finalised != 0) {
    throw Error(ErrorCode::engine_unavailable, "mpi", "group", "MPI is finalised already");
  }
  if (!Runtime::get().usable()) {
    throw Error(ErrorCode::engine_unavailable, "mpi", "group", "an earlier one failed",
                "start the job again, from the last checkpoint");
  }
  return std::make_unique<MpiGroup>(timeout, host_id);
}

}  // namespace dgc
