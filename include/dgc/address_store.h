// Rendezvous by address, as torchrun does it: rank 0 listens, all connect.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "dgc/engines.h"

namespace dgc {

/// A store served by rank 0 at host:port, on that address alone. (A name that rank 0's machine
/// knows as a loopback address only, as Debian does with its own, means all addresses of the
/// machine, or that of DGC_INTERFACE.) Returns when connected. The store is gone with rank 0's.
///
/// With a secret ("": DGC_SECRET), only those who have it read or change anything. Whoever else
/// connects is dropped, and delays nobody. docs/multi-node.md says what that protects.
///
/// Throws Error(io), naming the address, when it cannot be reached within the timeout or the port
/// is taken; Error(invalid_argument) at once when it has another secret or is something else.
std::shared_ptr<RendezvousStore> make_address_store(const std::string& host, std::uint16_t port,
                                                    int rank, int size,
                                                    std::chrono::milliseconds timeout,
                                                    const std::string& secret = {});

/// The same from MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE, torchrun's convention; null when
/// MASTER_ADDR is not set. make_group() does it by itself. Where torchrun's agent holds MASTER_PORT
/// (TORCHELASTIC_USE_AGENT_STORE), this is a client of its store, which needs dgc::torch: Throws
/// Error(engine_unavailable) where that is not linked.
std::shared_ptr<RendezvousStore> address_store_from_environment(std::chrono::milliseconds timeout);

}  // namespace dgc
