// What an exchange can send without making a step longer: the part of --ratio auto that knows the
// cost model. A pure function of agreed numbers, so that all ranks get the same.
#pragma once

#include <span>
#include <vector>

#include "dgc/exchange.h"
#include "exchange/cost.h"

namespace dgc::exchange {

/// An exchange as far as its time is concerned.
struct Priced {
  std::span<const TensorSpec> model;
  std::span<const std::vector<std::size_t>> buckets;
  const CompressOptions& compress;  ///< its schedule is not looked at
  const ExchangeOptions& options;
  CostSetup setup;
};

/// The largest ratio from `least` to 0.25 at which the exchange is free, or nearly: see
/// Exchange::free_ratio.
double free_ratio(const Priced& priced, const FreeTime& time, double least);

}  // namespace dgc::exchange
