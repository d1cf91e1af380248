// As DistributedDataParallel does it: the last parameters first, because backward ends with the
// first ones.
#include "torch/bucket_plan.h"

#include <algorithm>

namespace dgc::sgd {

Buckets plan_buckets(std::span<const std::uint64_t> bytes, std::uint64_t bucket_bytes) {
  Buckets plan;
  std::uint64_t filled = 0;
  for (std::size_t p = bytes.size(); p-- > 0;) {
    if (plan.empty() || filled + bytes[p] > bucket_bytes) {
      plan.emplace_back();
      filled = 0;
    }
    plan.back().push_back(p);
    filled += bytes[p];
  }
  for (auto& bucket : plan) std::reverse(bucket.begin(), bucket.end());
  return plan;
}

}  // namespace dgc::sgd
