// A member's end of the connection to a hub: HTTPS, one request at a time, on one connection that
// is made again when it is lost.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>

#include "hub/member.h"

namespace dgc::hub {

/// Where a hub is, and how it proves that it is that one.
struct HubPlace {
  std::string host;
  std::uint16_t port = 7077;
  bool tls = true;
  std::string pin;  ///< "sha256:…"; empty: the system's certificate authorities decide
};

/// "https://HOST[:PORT]", or "http://…" where `plain` allows it. Throws Error(invalid_argument).
HubPlace place_of(const std::string& url, bool plain = false);
/// Whether only this machine is meant: an address of the loopback network, or localhost.
bool is_loopback(const std::string& host);

/// There is no answer: the network, or a hub that is away. To be tried again.
class Unreachable : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Answer {
  int status = 0;
  Bytes body;
  double seconds = 0.0;  ///< from the request to the answer
};

class Client {
 public:
  /// Asked several times a second while something is under way: true gives it up.
  using Stop = std::function<bool()>;

  Client(HubPlace place, std::string token);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  /// Connects if need be. Throws Unreachable, also where `stop` said so;
  /// Error(configuration_mismatch) for a hub with another certificate than the pin's.
  Answer ask(const Ask& ask, const Stop& stop);
  void set_token(std::string token);
  /// The next request makes a new connection.
  void disconnect() noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Repeats a request until there is an answer. Waits longer from one attempt to the next, and by
/// chance a little more or less, so that members do not come back all at once.
class Courier {
 public:
  using Say = std::function<void(const std::string&)>;
  Courier(Client& client, Say say) : client_(client), say_(std::move(say)) {}

  /// The body of the answer, which may be an error of the hub's; empty where `stop` said so. Throws
  /// Error as Client does.
  Bytes carry(const Ask& ask, const Client::Stop& stop);
  /// Whether the last attempt had no answer.
  bool failing() const noexcept { return failing_; }
  /// From the last request to its answer.
  double seconds() const noexcept { return seconds_; }

 private:
  Client& client_;
  Say say_;
  bool failing_ = false;
  double seconds_ = 0.0;
};

}  // namespace dgc::hub
