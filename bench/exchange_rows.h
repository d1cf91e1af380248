// The rows that `dgc bench exchange` prints, from what its workers saw.
#pragma once

#include "bench/exchange_worker.h"
#include "dgc/exchange.h"

namespace dgc::bench::exchange_bench {

/// Whether the floats themselves are sent, by no algorithm of Exchange.
inline bool is_plain(const std::string& algorithm) {
  return algorithm == kPlain || algorithm == kNative;
}

/// Whether workers of a host have shares of a state under it.
bool in_shares(const std::string& algorithm);

/// One row from what all ranks saw: the slowest counts, and the one with most traffic.
nlohmann::json combine(const std::string& algorithm, const Group& group, const Options& options,
                       int hosts, const std::vector<nlohmann::json>& ranks);

}  // namespace dgc::bench::exchange_bench
