// What the workers of a run say to each other beside gradients.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "dgc/group.h"

namespace dgc::train {

/// What all ranks say, in their order. A collective call.
std::vector<std::string> gathered(Group& group, const std::string& mine);

/// Throws Error(configuration_mismatch), with `hint`, on all ranks unless all say the same: it
/// names the first rank that differs from rank 0, and the first line. A collective call.
void require_same(Group& group, const std::string& mine, const std::string& hint);

/// Sums over all ranks, added in their order: the same bits everywhere. A collective call.
std::vector<double> summed(Group& group, const std::vector<double>& mine);

/// While it lives, ranks wait ten times as long for each other: reading data and evaluating take
/// different times on different machines, and nobody is lost yet.
class Patience {
 public:
  explicit Patience(Group& group) : group_(group), before_(group.timeout()) {
    group.set_timeout(before_ * 10);
  }
  ~Patience() { group_.set_timeout(before_); }
  Patience(const Patience&) = delete;
  Patience& operator=(const Patience&) = delete;

 private:
  Group& group_;
  std::chrono::milliseconds before_;
};

/// Threads for this rank: `asked`, or, where that is 0, an even share of the cores for each of the
/// workers of this machine. A collective call.
int threads_of_worker(Group& group, std::int64_t asked);

}  // namespace dgc::train
