// Residuals of a run that goes on with another number of workers: the sums of u and of v over all
// workers are conserved, because old rank i goes to rank i mod N and new ranks begin with zeros.
#pragma once

#include <vector>

namespace dgc::compress {

/// The ranks of a run of `old_ranks` whose u and v add up, in this order, to those of `rank` in a
/// run of `ranks`.
inline std::vector<int> old_ranks_of(int rank, int ranks, int old_ranks) {
  std::vector<int> old;
  for (int i = rank; i < old_ranks; i += ranks) old.push_back(i);
  return old;
}

}  // namespace dgc::compress
