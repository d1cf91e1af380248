// What the exchange asks of an algorithm under which the workers of a host hold one state between
// them: each compresses a share of every tensor.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "exchange/context.h"

namespace dgc::exchange {

/// Whether the algorithm is of that kind. Only then do numbers of hosts matter.
bool in_shares(Algorithm algorithm) noexcept;

/// Who shares a host with whom.
struct Topology {
  int host = 0;  ///< which host this rank is on
  int hosts = 1;
  int local_rank = 0;  ///< place among the ranks of its host
  int local_size = 1;
  std::vector<int> local;         ///< ranks of this host
  std::vector<int> counterparts;  ///< ranks with this local_rank, by host
};
/// By Group::host() or, where it is not empty, by `host` (for containers and network namespaces).
/// Throws Error(configuration_mismatch) where hosts have unequal numbers of workers. A collective
/// call.
Topology find_topology(Group& group, const std::string& host);
/// Of an exchange with these options: none where every rank has a state of its own.
std::optional<Topology> find_topology(Group& group, const ExchangeOptions& options);

/// The part of each tensor that this worker compresses. Its State is made of these, with rank
/// `topology.host` of `topology.hosts`.
std::vector<TensorSpec> share_of(const std::vector<TensorSpec>& model, const Topology& topology);

/// The ranks have agreed on the bucket before (agree()).
void run_shares(Context& context, const Topology& topology, Task& task, Contents& contents);

/// Bytes that a worker receives in an exchange, and messages that it sends (received_bytes and
/// sent_messages of such algorithms). `message` are those of its share, `elements` the model's.
double shares_bytes(double message, double elements, int workers, int hosts) noexcept;
double shares_messages(int workers, int hosts) noexcept;

}  // namespace dgc::exchange
