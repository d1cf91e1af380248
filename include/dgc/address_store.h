// Rendezvous by address, as torchrun does it: rank 0 listens, all connect. Part of the component
// torch, because it is libtorch's TCPStore underneath.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "dgc/engines.h"

namespace dgc {

/// A store served by rank 0 at host:port. Returns when connected. The store is gone with rank 0's
/// process. Throws Error(io), naming the address, when it cannot be reached within the timeout or
/// the port is taken.
std::shared_ptr<RendezvousStore> make_address_store(const std::string& host, std::uint16_t port,
                                                    int rank, int size,
                                                    std::chrono::milliseconds timeout);

/// The same from MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE, torchrun's convention; null when
/// MASTER_ADDR is not set. For make_group.
std::shared_ptr<RendezvousStore> address_store_from_environment(std::chrono::milliseconds timeout);

}  // namespace dgc
