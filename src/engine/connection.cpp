#include "engine/connection.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "dgc/error.h"

namespace dgc::detail {
namespace {

using std::chrono::milliseconds;

[[noreturn]] void cannot(const char* what, const Address& address, const char* hint) {
  throw Error(ErrorCode::io, "rendezvous", address.text(),
              fmt::format("cannot {}: {}", what, std::generic_category().message(errno)), hint);
}

template <typename Family>
Family as(const sockaddr_storage& storage) {
  Family address{};
  std::memcpy(&address, &storage, sizeof address);
  return address;
}

}  // namespace

int milliseconds_until(Moment moment) {
  const auto left = std::chrono::ceil<milliseconds>(moment - std::chrono::steady_clock::now());
  constexpr milliseconds kLongest{3'600'000};
  return static_cast<int>(std::clamp(left, milliseconds(0), kLongest).count());
}

void Socket::close() noexcept {
  if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
}

std::string Address::host() const {
  std::array<char, NI_MAXHOST> name{};
  const int error = ::getnameinfo(reinterpret_cast<const sockaddr*>(&storage), length, name.data(),
                                  name.size(), nullptr, 0, NI_NUMERICHOST);
  return error == 0 ? name.data() : "?";
}

std::uint16_t Address::port() const {
  return ntohs(storage.ss_family == AF_INET6 ? as<sockaddr_in6>(storage).sin6_port
                                             : as<sockaddr_in>(storage).sin_port);
}

void Address::set_port(std::uint16_t port) {
  if (storage.ss_family == AF_INET6) {
    auto address = as<sockaddr_in6>(storage);
    address.sin6_port = htons(port);
    std::memcpy(&storage, &address, sizeof address);
  } else {
    auto address = as<sockaddr_in>(storage);
    address.sin_port = htons(port);
    std::memcpy(&storage, &address, sizeof address);
  }
}

std::string Address::text() const {
  if (storage.ss_family == AF_INET6) return fmt::format("[{}]:{}", host(), port());
  return fmt::format("{}:{}", host(), port());
}

bool Address::is_loopback() const {
  if (storage.ss_family == AF_INET) {
    return ntohl(as<sockaddr_in>(storage).sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
  }
  const auto six = as<sockaddr_in6>(storage);
  return storage.ss_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&six.sin6_addr);
}

Address Address::of(const Socket& socket) {
  Address address;
  address.length = sizeof address.storage;
  ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address.storage), &address.length);
  return address;
}

std::vector<Address> resolve(const std::string& host, std::uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) {
    throw Error(ErrorCode::invalid_argument, "rendezvous", fmt::format("host '{}'", host),
                fmt::format("has no address: {}", ::gai_strerror(error)),
                "MASTER_ADDR is the name or the address of the machine of rank 0");
  }
  std::vector<Address> addresses;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    Address address;
    address.length = one->ai_addrlen;
    std::memcpy(&address.storage, one->ai_addr, one->ai_addrlen);
    addresses.push_back(address);
  }
  ::freeaddrinfo(found);
  return addresses;
}

Socket listen_at(const Address& address) {
  Socket socket(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket) cannot("make a socket", address, "");
  const int on = 1;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const auto* const where = reinterpret_cast<const sockaddr*>(&address.storage);
  if (::bind(socket.get(), where, address.length) != 0 || ::listen(socket.get(), SOMAXCONN) != 0) {
    cannot("listen", address,
           "the address is one of this machine, and the port one that nobody else uses");
  }
  return socket;
}

Socket accept_from(const Socket& listener) {
  return Socket(::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
}

Socket begin_connect(const Address& address) {
  Socket socket(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket) return socket;
  // Small messages at once; and a host that has gone without a word is noticed.
  const int on = 1;
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::setsockopt(socket.get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  const auto* const where = reinterpret_cast<const sockaddr*>(&address.storage);
  if (::connect(socket.get(), where, address.length) == 0 || errno == EINPROGRESS) return socket;
  const int error = errno;
  socket.close();
  errno = error;
  return socket;
}

int connect_error(const Socket& socket, const Address& address) {
  int error = 0;
  socklen_t length = sizeof error;
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0) return errno;
  // Where nobody listens, a socket can connect to itself, if it is given that very port.
  if (error == 0 && Address::of(socket) == address) return ECONNREFUSED;
  return error;
}

bool Connection::read(std::size_t size) {
  while (in_.size() < size) {
    const std::size_t before = in_.size();
    // Memory grows with what has come, not with what was promised.
    in_.resize(std::min(size, before + 4096));
    const ssize_t count = ::recv(socket_.get(), in_.data() + before, in_.size() - before, 0);
    const int error = errno;
    in_.resize(before + static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
    if (count > 0) continue;
    if (count == 0) return false;
    if (error == EINTR) continue;
    return error == EAGAIN;
  }
  return true;
}

void Connection::send(std::span<const std::byte> bytes) {
  out_.insert(out_.end(), bytes.begin(), bytes.end());
}

bool Connection::flush() {
  while (sending()) {
    const ssize_t count =
        ::send(socket_.get(), out_.data() + sent_, out_.size() - sent_, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return errno == EAGAIN;
    sent_ += static_cast<std::size_t>(count);
  }
  out_.clear();
  sent_ = 0;
  return true;
}

short Connection::events() const {
  // Who does not take its answers is not asked for more.
  return sending() ? POLLOUT : POLLIN;
}

bool Connection::wait_for(std::size_t size, Moment deadline) {
  for (;;) {
    if (!flush()) return false;
    if (!sending() && !read(size)) return false;
    if (!sending() && has(size)) return true;
    const int left = milliseconds_until(deadline);
    if (left == 0) return false;
    pollfd one{socket_.get(), events(), 0};
    ::poll(&one, 1, left);
  }
}

}  // namespace dgc::detail
