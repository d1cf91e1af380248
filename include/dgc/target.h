// The instruction set that the kernels run on.
#pragma once

#include <string>
#include <vector>

namespace dgc {

struct Target {
  std::string name;  ///< "avx2", "scalar", …
  bool supported;    ///< by this machine
};

/// Every instruction set compiled in, best first; "scalar" is always the last.
std::vector<Target> targets();

/// Name of the one in use: the best supported, or what the environment variable DGC_TARGET names.
/// Throws Error(unsupported_target) when that is unknown or not supported here.
std::string active_target();

}  // namespace dgc
