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

struct ServerOptions {
  std::string address = "0.0.0.0";
  std::uint16_t port = 7077;  ///< 0: any
  /// Without it, plain HTTP.
  std::optional<Identity> identity;
  std::size_t connections = 4096;
  /// From one address, before they have shown a good token.
  std::size_t strangers = 64;
  /// Bytes of requests that are under way, of all connections together.
  std::size_t memory = std::size_t{2} << 30;
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
