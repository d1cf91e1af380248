// Models that are known by name, as far as their traffic is concerned.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace dgc::plan {

struct Workload {
  std::string name;   ///< as on the command line
  std::string title;  ///< as in the paper
  std::uint64_t parameters = 0;
  std::uint64_t one_dimensional = 0;  ///< of them, in tensors that are sent whole
  int tensors = 1;                    ///< of more dimensions: each has a frame of its own
  bool clipped = false;               ///< by the norm of the whole gradient, as RNNs are

  std::uint64_t sparse() const { return parameters - one_dimensional; }
};

/// The paper's models, and those of `dgc train`.
std::span<const Workload> workloads();
/// Throws Error(invalid_argument) with the nearest name.
const Workload& workload_named(std::string_view name);

}  // namespace dgc::plan
