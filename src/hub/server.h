// A hub on the network: HTTPS, for members, the page and Prometheus on one port.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "hub/hub.h"
#include "hub/tls.h"

namespace dgc::hub {

/// Seconds after which a connection is closed.
struct ServerPatience {
  double handshake = 10.0;
  double header = 15.0;  ///< of a request, before a good token was shown
  double idle = 3600.0;  ///< the same after that: a member may compute for long
  double body = 30.0;    ///< and one more for each `slowest` bytes; for answers, too
  double refusal = 0.5;  ///< before a wrong token is answered: guessing takes time
  double linger = 10.0;  ///< in which a body that nobody wants is thrown away
  std::size_t slowest = std::size_t{16} << 10;
};

struct ServerOptions {
  std::string address = "0.0.0.0";
  std::uint16_t port = 7077;  ///< 0: any
  /// Without it, plain HTTP.
  std::optional<Identity> identity;
  std::size_t connections = 4096;
  /// From one address, before they have shown a good token.
  std::size_t strangers = 64;
  /// Bytes of requests and answers that are under way, of all connections together.
  std::size_t memory = std::size_t{2} << 30;
  ServerPatience patience;
};

class Server {
 public:
  /// Listens. Throws Error(io) where that is not possible.
  Server(Hub& hub, ServerOptions options);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  std::uint16_t port() const noexcept;
  /// Serves until `stop` says so, which is asked several times a second. The hub is used by this
  /// thread alone.
  void run(const std::function<bool()>& stop);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dgc::hub
