// Gloo's pairs, without their listening sockets.
#pragma once

#include <gloo/transport/tcp/context.h>
#include <gloo/transport/tcp/pair.h>

#include <memory>

#include "engine/connection.h"

namespace dgc::detail {

/// A pair that does not connect. It is given a connection.
class Link final : public gloo::transport::tcp::Pair {
 public:
  /// Gloo's loop must stand still while it is made (Standstill).
  Link(gloo::transport::tcp::Context* context, gloo::transport::tcp::Device* device, int rank,
       std::chrono::milliseconds timeout);

  /// Where Gloo would have listened.
  const gloo::transport::tcp::Address& place() const { return self_; }
  void use(Socket socket);
};

/// Gloo's context of such pairs.
class Links final : public gloo::transport::tcp::Context {
 public:
  Links(std::shared_ptr<gloo::transport::tcp::Device> device, int own_rank, int ranks,
        std::chrono::milliseconds timeout);

  std::unique_ptr<gloo::transport::Pair>& createPair(int peer) override;
  Link& link(int peer) { return static_cast<Link&>(*getPair(peer)); }
};

}  // namespace dgc::detail
