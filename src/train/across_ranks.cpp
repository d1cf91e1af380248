#include "train/across_ranks.h"

#include <fmt/format.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <cstring>
#include <span>

#include "base/difference.h"
#include "dgc/collectives.h"
#include "dgc/error.h"

namespace dgc::train {

std::vector<std::string> gathered(Group& group, const std::string& mine) {
  std::vector<std::string> all;
  for (const auto& bytes : all_gather(group, std::as_bytes(std::span(mine)))) {
    all.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  return all;
}

void require_same(Group& group, const std::string& mine, const std::string& hint) {
  const auto difference = first_difference(gathered(group, mine));
  if (!difference) return;
  throw Error(ErrorCode::configuration_mismatch, "train", fmt::format("rank {}", difference->rank),
              difference->text(), hint);
}

std::vector<double> summed(Group& group, const std::vector<double>& mine) {
  std::vector<double> sums(mine.size());
  for (const auto& bytes : all_gather(group, std::as_bytes(std::span(mine)))) {
    std::vector<double> theirs(mine.size());
    if (bytes.size() != theirs.size() * sizeof(double)) {
      throw Error(ErrorCode::configuration_mismatch, "train", "sums over all ranks",
                  "ranks are at different places", "start all workers with the same settings");
    }
    std::memcpy(theirs.data(), bytes.data(), bytes.size());
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += theirs[i];
  }
  return sums;
}

int threads_of_worker(Group& group, std::int64_t asked) {
  int here = 0;
  for (const std::string& host : gathered(group, group.host())) here += host == group.host();
  if (asked > 0) return static_cast<int>(asked);
  return std::max(1, ::get_nprocs() / std::max(1, here));
}

}  // namespace dgc::train
