#include "engine/gloo_mesh.h"

#include <fmt/format.h>
#include <gloo/transport/tcp/address.h>
#include <gloo/transport/tcp/device.h>
#include <netinet/in.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "engine/bytes.h"
#include "engine/gloo_link.h"
#include "engine/introduction.h"

namespace dgc::detail {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

/// Connections that have not proved themselves; the oldest gives way to a new one.
constexpr std::size_t kStrangers = 64;
/// How long an introduction may take. A rank that is slower than that comes again.
constexpr milliseconds kIntroduction{10'000};
/// Until the next attempt of a rank whose connection was dropped.
constexpr milliseconds kPause{50};
constexpr milliseconds kMeanwhile{300};

/// A connection on which the ends introduce themselves.
struct Attempt {
  Attempt(Socket socket, Introduction how, Moment until)
      : connection(std::move(socket)), introduction(std::move(how)), deadline(until) {
    connection.send(introduction.begin());
  }

  /// Goes on as far as it can. False: the connection broke.
  bool advance() {
    for (;;) {
      if (!connection.flush()) return false;
      if (connection.sending() || introduction.state() != Introduction::State::going) return true;
      const std::size_t size = introduction.wants();
      if (!connection.read(size)) return false;
      if (!connection.has(size)) return true;
      connection.send(introduction.take(connection.in()));
      connection.clear_in();
    }
  }
  /// All was said, and heard.
  bool over() const {
    return introduction.state() != Introduction::State::going && !connection.sending();
  }

  Connection connection;
  Introduction introduction;
  Moment deadline;
};

/// A lower rank, which this one connects to.
struct Call {
  int peer;
  Address address;
  std::optional<Attempt> attempt = {};
  bool connected = false;
  Moment again = {};  // when to try the next time
};

Error unreachable(const Call& call, int error) {
  return Error(ErrorCode::peer_lost, "connect", fmt::format("rank {}", call.peer),
               fmt::format("cannot be reached at {}: {}", call.address.text(),
                           std::generic_category().message(error)),
               "on several machines, set DGC_INTERFACE to the network interface that they share; "
               "and was the store used before?");
}

/// The peers come: those above call, those below are called.
class Gathering {
 public:
  Gathering(int rank, int size, std::string secret, std::string purpose, const Socket& listener)
      : rank_(rank),
        secret_(std::move(secret)),
        purpose_(std::move(purpose)),
        listener_(listener),
        sockets_(static_cast<std::size_t>(size)) {}

  void call(int peer, const Address& address) { calls_.push_back({peer, address}); }

  std::vector<Socket> wait(Moment deadline, const std::function<void()>& meanwhile) {
    Moment next_meanwhile = Clock::now() + kMeanwhile;
    for (;;) {
      for (Call& call : calls_) dial(call);
      const int missing = first_missing();
      if (missing < 0) return std::move(sockets_);
      const Moment now = Clock::now();
      if (now >= deadline) {
        throw Error(ErrorCode::timeout, "connect", fmt::format("rank {}", missing),
                    "did not connect in time",
                    "all ranks need the same DGC_SECRET and the same version of dgc");
      }
      if (now >= next_meanwhile) {
        meanwhile();
        next_meanwhile = now + kMeanwhile;
      }
      std::erase_if(guests_, [&](const Attempt& guest) { return guest.deadline <= now; });
      poll_until(std::min(deadline, next_meanwhile));
    }
  }

 private:
  int first_missing() const {
    for (std::size_t peer = 0; peer < sockets_.size(); ++peer) {
      if (static_cast<int>(peer) != rank_ && !sockets_[peer]) return static_cast<int>(peer);
    }
    return -1;
  }

  void dial(Call& call) {
    if (call.attempt || sockets_[static_cast<std::size_t>(call.peer)] ||
        Clock::now() < call.again) {
      return;
    }
    Socket socket = begin_connect(call.address);
    if (!socket) {
      failed(call, errno);
      return;
    }
    call.connected = false;
    call.attempt.emplace(std::move(socket),
                         Introduction::connector(secret_, purpose_, rank_, call.peer),
                         Moment::max());
  }

  /// Tries again where that may help: the peer may have had too many strangers at once.
  static void failed(Call& call, int error) {
    call.attempt.reset();
    call.again = Clock::now() + kPause;
    const bool closed = error == 0 || error == ECONNRESET || error == EPIPE;
    if (!closed && error != ETIMEDOUT && error != EAGAIN && error != EINTR) {
      throw unreachable(call, error);
    }
  }

  void poll_until(Moment moment) {
    std::vector<pollfd> waiting{{listener_.get(), POLLIN, 0}};
    for (const Attempt& guest : guests_) {
      waiting.push_back({guest.connection.descriptor(), guest.connection.events(), 0});
      moment = std::min(moment, guest.deadline);
    }
    for (const Call& call : calls_) {
      if (!call.attempt) {
        waiting.push_back({-1, 0, 0});
        const bool done = static_cast<bool>(sockets_[static_cast<std::size_t>(call.peer)]);
        if (!done) moment = std::min(moment, call.again);
        continue;
      }
      waiting.push_back({call.attempt->connection.descriptor(),
                         call.connected ? call.attempt->connection.events() : short{POLLOUT}, 0});
    }
    if (::poll(waiting.data(), waiting.size(), milliseconds_until(moment)) <= 0) return;
    std::size_t i = 1;
    for (Attempt& guest : guests_) {
      if (waiting[i++].revents != 0) attend(guest);
    }
    for (Call& call : calls_) {
      if (waiting[i++].revents != 0) attend(call);
    }
    std::erase_if(guests_, [](const Attempt& guest) { return guest.connection.descriptor() < 0; });
    if (waiting[0].revents != 0) let_in();
  }

  void attend(Attempt& guest) {
    const bool fine = guest.advance();
    if (fine && !guest.over()) return;
    Socket socket = guest.connection.take_socket();
    // A rank that comes again had given up its first connection.
    if (fine && guest.introduction.state() == Introduction::State::proved) {
      sockets_[static_cast<std::size_t>(guest.introduction.from())] = std::move(socket);
    }
  }

  void attend(Call& call) {
    Attempt& attempt = *call.attempt;
    if (!call.connected) {
      const int error = connect_error(attempt.connection.socket(), call.address);
      if (error != 0) {
        failed(call, error);
        return;
      }
      call.connected = true;
    }
    if (!attempt.advance()) {
      failed(call, 0);
      return;
    }
    if (!attempt.over()) return;
    switch (attempt.introduction.state()) {
      case Introduction::State::proved:
        sockets_[static_cast<std::size_t>(call.peer)] = attempt.connection.take_socket();
        call.attempt.reset();
        return;
      case Introduction::State::refused:
        throw Error(ErrorCode::invalid_argument, "connect",
                    fmt::format("rank {} at {}", call.peer, call.address.text()),
                    fmt::format("refused this rank: {}", secret_.empty()
                                                             ? "DGC_SECRET is not set here"
                                                             : "it has another secret, or none"),
                    "set DGC_SECRET to the same text for all ranks, and start as many ranks as "
                    "WORLD_SIZE says");
      case Introduction::State::foreign:
      case Introduction::State::going:
        throw Error(ErrorCode::peer_lost, "connect",
                    fmt::format("rank {} at {}", call.peer, call.address.text()),
                    "what answers there could not prove that it is that rank",
                    "start all ranks with the same DGC_SECRET and the same version of dgc; and was "
                    "the store used before?");
    }
  }

  void let_in() {
    for (std::size_t i = 0; i < kStrangers; ++i) {
      Socket socket = accept_from(listener_);
      if (!socket) {
        // No descriptors are left: those who have not proved themselves give theirs back.
        if (errno == EMFILE || errno == ENFILE) guests_.clear();
        return;
      }
      if (guests_.size() >= kStrangers) guests_.erase(guests_.begin());
      guests_.emplace_back(std::move(socket),
                           Introduction::acceptor(secret_, purpose_,
                                                  [this](int from, int to) {
                                                    return to == rank_ && from > rank_ &&
                                                           static_cast<std::size_t>(from) <
                                                               sockets_.size();
                                                  }),
                           Clock::now() + kIntroduction);
    }
  }

  int rank_;
  std::string secret_;
  std::string purpose_;
  const Socket& listener_;
  std::vector<Socket> sockets_;  // of the peers that are there
  std::vector<Call> calls_;
  std::vector<Attempt> guests_;  // in the order in which they came
};

/// What a rank leaves in the store: its address, its port, the name of its network; one a line.
struct Entry {
  Address address;
  std::string_view network;
};

Entry read_entry(int peer, std::span<const std::byte> bytes) {
  const std::string_view text = text_of(bytes);
  const auto first = text.find('\n');
  const auto second = first == text.npos ? first : text.find('\n', first + 1);
  try {
    if (second != text.npos) {
      const int port = std::stoi(std::string(text.substr(first + 1, second - first - 1)));
      const auto found =
          resolve(std::string(text.substr(0, first)), static_cast<std::uint16_t>(port));
      return {found.front(), text.substr(second + 1)};
    }
  } catch (const std::exception&) {  // said below
  }
  throw Error(ErrorCode::bad_length, "rendezvous", fmt::format("rank {}", peer),
              "left something else than an address in the store",
              "start all ranks with the same version of dgc, of one group size");
}

}  // namespace

Mesh::Mesh(const GlooOptions& options, Device device, std::string secret)
    : gloo::Context(options.rank, options.size),
      secret_(std::move(secret)),
      name_(options.name),
      network_(loopback_network()) {
  auto tcp = std::dynamic_pointer_cast<gloo::transport::tcp::Device>(device);
  auto links = std::make_shared<Links>(std::move(tcp), rank, size, options.timeout);
  const auto& place = links->link(rank == 0 ? 1 : 0).place();
  Address own;
  own.storage = place.getSockaddr();
  own.length = own.storage.ss_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  own.set_port(0);
  listener_ = listen_at(own);
  address_ = Address::of(listener_);
  device_ = std::move(device);
  transportContext_ = std::move(links);
}

std::vector<std::byte> Mesh::address() const {
  std::vector<std::byte> bytes;
  append(bytes, bytes_of(fmt::format("{}\n{}\n{}", address_.host(), address_.port(), network_)));
  return bytes;
}

void Mesh::check_reachable(int peer, std::span<const std::byte> theirs) const {
  const Entry entry = read_entry(peer, theirs);
  if (entry.network == network_) return;
  const auto check = [](int listener, const Address& of, int other) {
    if (!of.is_loopback()) return;
    throw Error(ErrorCode::invalid_argument, "gloo", fmt::format("rank {}", listener),
                fmt::format("listens on {}, which rank {} on another machine cannot reach",
                            of.host(), other),
                "set DGC_INTERFACE (GlooOptions::interface) on each machine to the network "
                "interface that leads to the others, such as eth0; `ip address` lists them");
  };
  check(rank, address_, peer);
  check(peer, entry.address, rank);
}

std::string Mesh::purpose() const { return fmt::format("dgc mesh 1\n{}\n{}", size, name_); }

void Mesh::connect(std::span<const std::vector<std::byte>> theirs, Moment deadline,
                   const std::function<void()>& meanwhile) {
  Gathering gathering(rank, size, secret_, purpose(), listener_);
  for (int peer = 0; peer < rank; ++peer) {
    gathering.call(peer, read_entry(peer, theirs[static_cast<std::size_t>(peer)]).address);
  }
  std::vector<Socket> sockets = gathering.wait(deadline, meanwhile);
  listener_.close();
  auto& links = static_cast<Links&>(*transportContext_);
  for (int peer = 0; peer < size; ++peer) {
    if (peer != rank) links.link(peer).use(std::move(sockets[static_cast<std::size_t>(peer)]));
  }
}

}  // namespace dgc::detail
