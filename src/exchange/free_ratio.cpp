// An exchange is free as long as it ends before backward does, and nearly free as long as it adds a
// few percent to the step. Cores are not idle while backward runs: coding counts against the few
// percent, whatever it hides behind.
//
// Not in the paper, whose ratio is the same for every network.
#include "exchange/free_ratio.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "exchange/choose.h"

namespace dgc::exchange {
namespace {

/// Of the step: what an exchange may add to it.
constexpr double kNearlyFree = 0.05;
/// Beyond this a dense exchange takes no longer.
constexpr double kMost = 0.25;

struct Seconds {
  double all = 0.0;
  double work = 0.0;  ///< of a core: selecting, coding, adding up
};

double seconds_of_bucket(const Priced& priced, const CostSetup& setup,
                         std::span<const Item> items) {
  switch (priced.options.algorithm) {
    case Algorithm::allgather:
    case Algorithm::hierarchical:  // between hosts
      return allgather_total(setup, items);
    case Algorithm::owner:
      return owner_total(setup, items);
    case Algorithm::dense:
      return dense_total(setup, items);
    case Algorithm::automatic:
      break;
  }
  return choose(setup, items, priced.options.reselect).seconds;
}

Seconds seconds_at(const Priced& priced, double ratio) {
  CompressOptions options = priced.compress;
  options.schedule = Schedule(ratio);
  CostSetup no_network = priced.setup;
  no_network.costs.link = {.bytes_per_second = std::numeric_limits<double>::infinity(),
                           .delay = {}};
  no_network.costs.byte = no_network.costs.message = no_network.costs.round = 0.0;
  Seconds sum;
  for (const auto& bucket : priced.buckets) {
    std::vector<Item> items;
    for (const std::size_t tensor : bucket) {
      const Load load = load_of(priced.model[tensor], options, 0);
      items.push_back({load, values_of(options, load)});
    }
    sum.all += seconds_of_bucket(priced, priced.setup, items);
    sum.work += seconds_of_bucket(priced, no_network, items);
  }
  return sum;
}

}  // namespace

double free_ratio(const Priced& priced, const FreeTime& time, double least) {
  const Seconds at_least = seconds_at(priced, least);
  const double more = kNearlyFree * (time.compute + at_least.all);
  const auto is_free = [&](double ratio) {
    const Seconds here = seconds_at(priced, ratio);
    return here.all <= std::max(at_least.all, time.hidden) + more &&
           here.work <= at_least.work + more;
  };
  if (least >= kMost) return least;
  if (is_free(kMost)) return kMost;
  double low = std::log(least);
  double high = std::log(kMost);
  for (int i = 0; i < 30; ++i) {
    const double middle = (low + high) / 2.0;
    (is_free(std::exp(middle)) ? low : high) = middle;
  }
  return std::exp(low);
}

}  // namespace dgc::exchange
