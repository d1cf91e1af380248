// TCP without surprises: sockets that never block, addresses as people write them, and reads of
// exactly what was asked for.
#pragma once

#include <sys/socket.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace dgc::detail {

using Moment = std::chrono::steady_clock::time_point;

/// Milliseconds from now, rounded up, at least 0: for poll().
int milliseconds_until(Moment moment);

/// Owns a descriptor.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  ~Socket() { close(); }
  Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    if (this != &other) {
      close();
      descriptor_ = std::exchange(other.descriptor_, -1);
    }
    return *this;
  }

  int get() const { return descriptor_; }
  int release() { return std::exchange(descriptor_, -1); }
  explicit operator bool() const { return descriptor_ >= 0; }
  void close() noexcept;

 private:
  int descriptor_ = -1;
};

/// Where a socket is.
struct Address {
  sockaddr_storage storage{};
  socklen_t length = 0;

  /// The number of the host, as in "10.0.0.7" or "fe80::1".
  std::string host() const;
  std::uint16_t port() const;
  void set_port(std::uint16_t port);
  /// "10.0.0.7:29500", "[fe80::1]:29500".
  std::string text() const;
  bool is_loopback() const;
  bool operator==(const Address& other) const { return text() == other.text(); }

  /// Where this end of a socket is.
  static Address of(const Socket& socket);
};

/// All addresses of a name or number. Throws Error(invalid_argument) where there are none.
std::vector<Address> resolve(const std::string& host, std::uint16_t port);

/// Listens there; port 0 takes a free one. Throws Error(io).
Socket listen_at(const Address& address);
/// The next that has come, or nothing.
Socket accept_from(const Socket& listener);
/// Begins to connect. Nothing, and errno, where that fails at once; else the socket is connected or
/// has failed when it can be written to.
Socket begin_connect(const Address& address);
/// 0, or why the connection to `address` could not be made (errno).
int connect_error(const Socket& socket, const Address& address);

/// A connection, what of a message has arrived and what waits to be sent.
class Connection {
 public:
  explicit Connection(Socket socket) : socket_(std::move(socket)) {}

  int descriptor() const { return socket_.get(); }
  const Socket& socket() const { return socket_; }
  Socket take_socket() { return std::move(socket_); }

  /// Takes what there is, until `size` bytes are together and not one more. False: it is broken.
  bool read(std::size_t size);
  bool has(std::size_t size) const { return in_.size() >= size; }
  std::span<const std::byte> in() const { return in_; }
  void clear_in() { in_.clear(); }

  void send(std::span<const std::byte> bytes);
  /// Sends what the other end takes now. False: it is broken.
  bool flush();
  bool sending() const { return sent_ < out_.size(); }
  /// What poll() should wait for, where more is to be read.
  short events() const;

  /// The same, waiting: until `size` bytes are there and everything is sent. False: it is broken,
  /// or the time is over.
  bool wait_for(std::size_t size, Moment deadline);

 private:
  Socket socket_;
  std::vector<std::byte> in_;
  std::vector<std::byte> out_;
  std::size_t sent_ = 0;
};

}  // namespace dgc::detail
