// A connection to each peer, made by us and used by Gloo.
//
// Debian's Gloo listens with a socket for each pair, takes whoever connects first for the peer, and
// ends the process on bytes that it does not understand. Here each rank has one listening socket of
// our own instead, for the time of rendezvous. Whoever connects has to prove itself (Introduction)
// before Gloo gets the connection. Of two ranks the higher one connects.
#pragma once

#include <gloo/context.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/connection.h"
#include "engine/gloo_device.h"

namespace dgc::detail {

/// What Gloo's collectives work on.
class Mesh final : public gloo::Context {
 public:
  /// Listens from then on.
  Mesh(const GlooOptions& options, Device device, std::string secret);

  /// Where the others connect to, for the store; and the name of the network that a loopback
  /// address belongs to.
  std::vector<std::byte> address() const;

  /// Loopback addresses lead to the machine itself: a connection between two machines cannot be
  /// made to one, and trying would take the whole timeout. Throws Error(invalid_argument).
  void check_reachable(int peer, std::span<const std::byte> theirs) const;

  /// Connects with all; nobody listens afterwards. `theirs` is by rank. Strangers are dropped, and
  /// keep nobody from coming. `meanwhile` is called now and then, and may throw. Throws Error:
  /// invalid_argument if a peer refuses this rank, peer_lost if it cannot be reached, timeout if it
  /// does not come until `deadline`.
  void connect(std::span<const std::vector<std::byte>> theirs, Moment deadline,
               const std::function<void()>& meanwhile);

  bool is_open_to_strangers() const { return secret_.empty() && !address_.is_loopback(); }

 private:
  std::string purpose() const;

  std::string secret_;
  std::string name_;
  std::string network_;
  Socket listener_;
  Address address_;
};

}  // namespace dgc::detail
