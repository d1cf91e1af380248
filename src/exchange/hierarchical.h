// The hierarchical algorithm: all that the rest of the code knows of it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "exchange/context.h"

namespace dgc::exchange {

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

/// The part of each tensor that this worker compresses. Its State is made of these, with rank
/// `topology.host` of `topology.hosts`.
std::vector<TensorSpec> share_of(const std::vector<TensorSpec>& model, const Topology& topology);

/// The ranks have agreed on the bucket before (agree()).
void run_hierarchical(Context& context, const Topology& topology, Task& task, Contents& contents);

}  // namespace dgc::exchange
