// A client of the store at host:port; rank 0 serves it, too.
#include "dgc/address_store.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <system_error>
#include <thread>

#include "base/environment.h"
#include "engine/agent_store.h"
#include "engine/sealed_store.h"
#include "engine/store_protocol.h"
#include "engine/store_server.h"

namespace dgc {
namespace {

using detail::Address;
using detail::Connection;
using detail::Introduction;
using detail::Moment;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

/// A server that takes longer for an answer is not there any more.
constexpr milliseconds kLongestAnswer{10'000};
constexpr milliseconds kFirstPause{10};
constexpr milliseconds kLongestPause{200};

bool is_number(const std::string& host) {
  in6_addr address;
  return ::inet_pton(AF_INET, host.c_str(), &address) == 1 || host.find(':') != std::string::npos;
}

/// The address of a network interface, preferably of IPv4, as Gloo takes it.
Address address_of(const std::string& interface, std::uint16_t port) {
  ifaddrs* all = nullptr;
  Address found;
  if (::getifaddrs(&all) == 0) {
    for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
      if (one->ifa_addr == nullptr || interface != one->ifa_name) continue;
      const auto family = one->ifa_addr->sa_family;
      if (family != AF_INET && (family != AF_INET6 || found.length != 0)) continue;
      found.length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
      std::memcpy(&found.storage, one->ifa_addr, found.length);
      if (family == AF_INET) break;
    }
    ::freeifaddrs(all);
  }
  if (found.length == 0) {
    throw Error(ErrorCode::invalid_argument, "rendezvous", fmt::format("interface '{}'", interface),
                "has no address here", "`ip address` lists interfaces and addresses");
  }
  found.set_port(port);
  return found;
}

Address any_address(int family, std::uint16_t port) {
  Address any;
  any.storage.ss_family = static_cast<sa_family_t>(family);
  any.length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  any.set_port(port);
  return any;
}

/// Where rank 0 listens for those who were given `host`: the first of these that is possible.
std::vector<Address> addresses_to_serve(const std::string& host, std::uint16_t port) {
  std::vector<Address> all = detail::resolve(host, port);
  std::stable_partition(all.begin(), all.end(),
                        [](const Address& a) { return a.storage.ss_family == AF_INET; });
  const auto others = std::stable_partition(all.begin(), all.end(),
                                            [](const Address& a) { return a.is_loopback(); });
  if (others != all.end()) return {others, all.end()};
  if (is_number(host) || host == "localhost") return all;
  // Debian's own name is 127.0.1.1 to itself. The others know it by another address.
  if (const auto interface = variable("DGC_INTERFACE")) return {address_of(*interface, port)};
  return {any_address(all.front().storage.ss_family, port)};
}

std::unique_ptr<detail::StoreServer> serve(const std::string& host, std::uint16_t port, int size,
                                           const std::string& secret) {
  detail::StoreLimits limits;
  limits.members = std::max(limits.members, 4 * static_cast<std::size_t>(size));
  const std::vector<Address> all = addresses_to_serve(host, port);
  for (std::size_t i = 0;; ++i) {
    try {
      return std::make_unique<detail::StoreServer>(all[i], secret, limits);
    } catch (const Error&) {
      if (i + 1 == all.size()) throw;
    }
  }
}

class AddressStore final : public RendezvousStore {
 public:
  AddressStore(std::string host, std::uint16_t port, int rank, int size, milliseconds timeout,
               std::string secret)
      : host_(std::move(host)),
        port_(port),
        secret_(std::move(secret)),
        answer_within_(std::min(timeout, kLongestAnswer)) {
    if (rank == 0) server_ = serve(host_, port_, size, secret_);
    connect(rank, Clock::now() + timeout);
  }

  void set(const std::string& key, std::span<const std::byte> value) override {
    if (value.size() > detail::kLongestValue) {
      throw Error(ErrorCode::invalid_argument, "rendezvous", fmt::format("key '{}'", key),
                  fmt::format("has a value of {} bytes; {} are the most", value.size(),
                              detail::kLongestValue));
    }
    const auto answer = ask(detail::Operation::set, key, value);
    if (status(answer) == detail::Status::ok) return;
    throw Error(ErrorCode::io, "rendezvous", fmt::format("{}: key '{}'", place(), key),
                status(answer) == detail::Status::full ? "the store is full" : "was not understood",
                "use a new store for each run");
  }

  std::optional<std::vector<std::byte>> get(const std::string& key, milliseconds timeout) override {
    const auto deadline = Clock::now() + timeout;
    for (milliseconds pause{1};; pause = std::min(2 * pause, milliseconds(20))) {
      if (auto value = try_get(key)) return value;
      const auto now = Clock::now();
      if (now >= deadline) return std::nullopt;
      std::this_thread::sleep_for(std::min<Clock::duration>(pause, deadline - now));
    }
  }

  std::optional<std::vector<std::byte>> try_get(const std::string& key) override {
    const auto answer = ask(detail::Operation::get, key, {});
    if (status(answer) != detail::Status::ok) return std::nullopt;
    return std::vector<std::byte>(answer.begin() + 1, answer.end());
  }

  void remove(const std::string& key) noexcept override {
    try {
      ask(detail::Operation::remove, key, {});
    } catch (const std::exception&) {  // rank 0 may be gone already, and the key with it
    }
  }

  bool is_open_to_strangers() const override { return secret_.empty() && !loopback_; }

 private:
  std::string place() const { return fmt::format("{}:{}", host_, port_); }

  static detail::Status status(std::span<const std::byte> answer) {
    return static_cast<detail::Status>(answer.front());
  }

  /// Rank 0 may not be there yet, or be kept busy by strangers.
  void connect(int rank, Moment deadline) {
    std::string last = "it did not answer";
    for (milliseconds pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
      try {
        for (const Address& address :
             server_ ? std::vector{server_->address()} : detail::resolve(host_, port_)) {
          if (try_connect(address, rank, deadline, last)) return;
        }
      } catch (const Error& error) {
        // A name may come with the machine.
        if (Clock::now() >= deadline || error.code() != ErrorCode::invalid_argument || refused_) {
          throw;
        }
        last = error.what();
      }
      if (Clock::now() >= deadline) {
        throw Error(ErrorCode::io, "rendezvous", place(), last,
                    "rank 0 must run there, with the same MASTER_ADDR and a MASTER_PORT that is "
                    "free");
      }
      std::this_thread::sleep_for(pause);
    }
  }

  bool try_connect(const Address& address, int rank, Moment deadline, std::string& last) {
    detail::Socket socket = detail::begin_connect(address);
    int error = socket ? 0 : errno;
    if (socket) {
      pollfd one{socket.get(), POLLOUT, 0};
      if (::poll(&one, 1, detail::milliseconds_until(deadline)) <= 0) return false;
      error = detail::connect_error(socket, address);
    }
    if (error != 0) {
      last = std::generic_category().message(error);
      return false;
    }
    auto connection = std::make_unique<Connection>(std::move(socket));
    auto introduction = Introduction::connector(secret_, detail::kStorePurpose, rank, 0);
    connection->send(introduction.begin());
    while (introduction.state() == Introduction::State::going) {
      if (!connection->wait_for(introduction.wants(), deadline)) {
        last = "it closed the connection, or did not answer";
        return false;
      }
      connection->send(introduction.take(connection->in()));
      connection->clear_in();
    }
    if (introduction.state() != Introduction::State::proved) refuse(introduction.state());
    incoming_.emplace(introduction.incoming());
    outgoing_.emplace(introduction.outgoing());
    loopback_ = address.is_loopback() && (!server_ || server_->address().is_loopback());
    connection_ = std::move(connection);
    return true;
  }

  [[noreturn]] void refuse(Introduction::State state) {
    refused_ = true;
    if (state == Introduction::State::foreign) {
      throw Error(ErrorCode::invalid_argument, "rendezvous", place(),
                  "what answers there is not rank 0 of this version of dgc",
                  "choose a MASTER_PORT that nobody else uses, and start all ranks with the same "
                  "version of dgc");
    }
    throw Error(ErrorCode::invalid_argument, "rendezvous", place(),
                fmt::format("rank 0 refused this process: {}",
                            secret_.empty() ? "it has a secret, and DGC_SECRET is not set here"
                                            : "its secret is another one, or it has none"),
                "set DGC_SECRET to the same text for all ranks");
  }

  std::vector<std::byte> ask(detail::Operation operation, const std::string& key,
                             std::span<const std::byte> value) {
    if (key.size() > detail::kLongestKey) {
      throw Error(ErrorCode::invalid_argument, "rendezvous", "key",
                  fmt::format("has {} bytes; {} are the most", key.size(), detail::kLongestKey));
    }
    const std::lock_guard lock(mutex_);
    // Each further call would wait for the server as long as the first did.
    if (!connection_) gone();
    std::vector<std::byte> request{static_cast<std::byte>(operation)};
    detail::append_number(request, static_cast<std::uint16_t>(key.size()));
    detail::append(request, detail::bytes_of(key));
    detail::append(request, value);
    detail::send_sealed(*connection_, *outgoing_, request);
    const auto deadline = Clock::now() + answer_within_;
    std::span<const std::byte> answer;
    if (!connection_->wait_for(detail::kLengthBytes, deadline) ||
        detail::message_size(*connection_) <= detail::kLengthBytes ||
        !connection_->wait_for(detail::message_size(*connection_), deadline) ||
        !detail::open_sealed(*connection_, *incoming_, answer) || answer.empty()) {
      connection_.reset();
      gone();
    }
    std::vector<std::byte> copy(answer.begin(), answer.end());
    connection_->clear_in();
    return copy;
  }

  [[noreturn]] void gone() const {
    throw Error(ErrorCode::io, "rendezvous", place(), "rank 0 does not answer any more");
  }

  std::string host_;
  std::uint16_t port_;
  std::string secret_;
  milliseconds answer_within_;
  std::unique_ptr<detail::StoreServer> server_;  // of rank 0
  std::mutex mutex_;                             // groups of several threads may share the store
  std::unique_ptr<Connection> connection_;
  std::optional<detail::Seal> incoming_;
  std::optional<detail::Seal> outgoing_;
  bool loopback_ = false;
  bool refused_ = false;
};

int number(const char* name, int most) {
  return number_in(name, "rendezvous",
                   "rendezvous by address needs MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE",
                   most);
}

}  // namespace

detail::MakeAgentStore& detail::agent_store_maker() noexcept {
  static MakeAgentStore maker = nullptr;
  return maker;
}

bool detail::has_agent_store() { return variable("TORCHELASTIC_USE_AGENT_STORE") == "True"; }

std::shared_ptr<RendezvousStore> make_address_store(const std::string& host, std::uint16_t port,
                                                    int rank, int size, milliseconds timeout,
                                                    const std::string& secret) {
  return std::make_shared<AddressStore>(host, port, rank, size, timeout,
                                        detail::secret_or_environment(secret));
}

std::shared_ptr<RendezvousStore> address_store_from_environment(milliseconds timeout) {
  const std::optional<std::string> host = variable("MASTER_ADDR");
  if (!host) return nullptr;
  const auto port = static_cast<std::uint16_t>(number("MASTER_PORT", 65535));
  const int size = number("WORLD_SIZE", 1 << 16);
  const int rank = number("RANK", size - 1);
  if (!detail::has_agent_store()) return make_address_store(*host, port, rank, size, timeout);
  if (const auto make = detail::agent_store_maker()) {
    return detail::seal_store(make(*host, port, size, timeout), detail::secret_or_environment(""));
  }
  throw Error(ErrorCode::engine_unavailable, "rendezvous", "TORCHELASTIC_USE_AGENT_STORE",
              "torchrun's store is libtorch's, and this program is without it",
              "link dgc::torch, or set DGC_STORE to a new folder that all ranks see");
}

}  // namespace dgc
