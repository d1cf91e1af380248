#include "engine/store_server.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <optional>

#include "dgc/error.h"
#include "engine/quiet_threads.h"
#include "engine/store_protocol.h"

namespace dgc::detail {
namespace {

using Clock = std::chrono::steady_clock;

/// How many are let in before those who are in are attended to.
constexpr int kAtOnce = 64;
/// Where no descriptors are left, nobody is let in for so long.
constexpr std::chrono::milliseconds kPause{50};

}  // namespace

struct StoreServer::Client {
  Client(Socket socket, Introduction how, Moment until)
      : connection(std::move(socket)), introduction(std::move(how)), deadline(until) {}

  bool proved() const { return introduction.state() == Introduction::State::proved; }
  bool idle() const { return proved() && !connection.has(1) && !connection.sending(); }

  Connection connection;
  Introduction introduction;
  std::optional<Seal> incoming;
  std::optional<Seal> outgoing;
  Moment deadline;       // unless idle
  bool leaving = false;  // when everything is sent
};

StoreServer::StoreServer(const Address& address, std::string secret, const StoreLimits& limits)
    : secret_(std::move(secret)),
      limits_(limits),
      listener_(listen_at(address)),
      address_(Address::of(listener_)),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!wake_) throw Error(ErrorCode::io, "rendezvous", address_.text(), "no descriptors are left");
  const QuietThreads quiet;
  thread_ = std::thread([this] { run(); });
}

StoreServer::~StoreServer() {
  ::eventfd_write(wake_.get(), 1);
  thread_.join();
}

void StoreServer::run() {
  Moment let_in{};
  std::vector<pollfd> waiting;
  for (;;) {
    const auto now = Clock::now();
    std::erase_if(clients_,
                  [&](const auto& client) { return !client->idle() && client->deadline <= now; });
    Moment next = now + std::chrono::hours(1);
    waiting.assign({{wake_.get(), POLLIN, 0}, {now < let_in ? -1 : listener_.get(), POLLIN, 0}});
    if (now < let_in) next = let_in;
    for (const auto& client : clients_) {
      waiting.push_back({client->connection.descriptor(), client->connection.events(), 0});
      if (!client->idle()) next = std::min(next, client->deadline);
    }
    if (::poll(waiting.data(), waiting.size(), milliseconds_until(next)) < 0) continue;
    if (waiting[0].revents != 0) return;
    for (std::size_t i = 0; i < clients_.size(); ++i) {
      if (waiting[i + 2].revents != 0 && !attend(*clients_[i])) clients_[i].reset();
    }
    std::erase(clients_, nullptr);
    if (waiting[1].revents == 0) continue;
    accept_new();
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      std::erase_if(clients_, [](const auto& client) { return !client->proved(); });
      let_in = Clock::now() + kPause;
    }
  }
}

/// Leaves errno as the last accept set it.
void StoreServer::accept_new() try {
  for (int i = 0; i < kAtOnce; ++i) {
    Socket socket = accept_from(listener_);
    if (!socket) return;
    const std::size_t proved = members();
    if (proved >= limits_.members) continue;
    if (clients_.size() - proved >= limits_.strangers) drop_oldest_stranger();
    auto introduction =
        Introduction::acceptor(secret_, kStorePurpose, [](int, int) { return true; });
    clients_.push_back(std::make_unique<Client>(std::move(socket), std::move(introduction),
                                                Clock::now() + limits_.patience));
  }
  errno = 0;
} catch (const std::exception&) {
  errno = ENOMEM;
}

std::size_t StoreServer::members() const {
  return static_cast<std::size_t>(
      std::ranges::count_if(clients_, [](const auto& client) { return client->proved(); }));
}

void StoreServer::drop_oldest_stranger() {
  const auto oldest =
      std::ranges::find_if(clients_, [](const auto& client) { return !client->proved(); });
  if (oldest != clients_.end()) clients_.erase(oldest);
}

bool StoreServer::attend(Client& client) try {
  Connection& connection = client.connection;
  if (!connection.flush()) return false;
  while (!connection.sending()) {
    const bool proved = client.proved();
    const std::size_t size = proved ? message_size(connection) : client.introduction.wants();
    if (client.leaving || size == 0) return false;
    const bool was_idle = client.idle();
    if (!connection.read(size)) return false;
    if (was_idle && connection.has(1)) client.deadline = Clock::now() + limits_.patience;
    if (!connection.has(size)) return true;
    if (proved && message_size(connection) != size) continue;  // that was the length
    if (!(proved ? answer(client) : introduce(client))) return false;
    connection.clear_in();
    if (!connection.flush()) return false;
  }
  return true;
} catch (const std::exception&) {
  return false;  // no memory: whoever asked for it goes
}

bool StoreServer::introduce(Client& client) {
  client.connection.send(client.introduction.take(client.connection.in()));
  switch (client.introduction.state()) {
    case Introduction::State::going:
      return true;
    case Introduction::State::proved:
      client.incoming = client.introduction.incoming();
      client.outgoing = client.introduction.outgoing();
      client.deadline = Clock::now() + limits_.patience;
      return true;
    case Introduction::State::refused:
      client.leaving = true;
      return true;
    case Introduction::State::foreign:
      break;
  }
  return false;
}

bool StoreServer::answer(Client& client) {
  std::span<const std::byte> request;
  if (!open_sealed(client.connection, *client.incoming, request)) return false;
  send_sealed(client.connection, *client.outgoing, carry_out(request));
  client.deadline = Clock::now() + limits_.patience;
  return true;
}

std::vector<std::byte> StoreServer::carry_out(std::span<const std::byte> request) {
  const auto say = [](Status status) {
    return std::vector<std::byte>{static_cast<std::byte>(status)};
  };
  if (request.size() < 3) return say(Status::malformed);
  const std::size_t key_size = wire::load<std::uint16_t>(request.data() + 1);
  if (key_size > kLongestKey || request.size() < 3 + key_size) return say(Status::malformed);
  const std::string_view key = text_of(request.subspan(3, key_size));
  const auto value = request.subspan(3 + key_size);
  const auto found = entries_.find(key);
  switch (static_cast<Operation>(request[0])) {
    case Operation::set: {
      const std::size_t before = found == entries_.end() ? 0 : key_size + found->second.size();
      const std::size_t after = bytes_ - before + key_size + value.size();
      if (value.size() > kLongestValue) return say(Status::malformed);
      if (after > limits_.bytes) return say(Status::full);
      if (found == entries_.end() && entries_.size() >= limits_.keys) return say(Status::full);
      bytes_ = after;
      if (found != entries_.end()) {
        found->second.assign(value.begin(), value.end());
      } else {
        entries_.emplace(key, std::vector<std::byte>(value.begin(), value.end()));
      }
      return say(Status::ok);
    }
    case Operation::get: {
      if (found == entries_.end()) return say(Status::absent);
      auto answer = say(Status::ok);
      append(answer, found->second);
      return answer;
    }
    case Operation::remove:
      if (found == entries_.end()) return say(Status::absent);
      bytes_ -= key_size + found->second.size();
      entries_.erase(found);
      return say(Status::ok);
  }
  return say(Status::malformed);
}

}  // namespace dgc::detail
