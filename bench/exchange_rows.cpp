#include "bench/exchange_rows.h"

#include <algorithm>
#include <cmath>

#include "bench/bench.h"
#include "exchange/shares.h"

namespace dgc::bench::exchange_bench {
namespace {

/// Bytes that docs/exchange.md says a worker receives, from the mean message of all workers.
double formula_bytes(const std::string& algorithm, double m, double dense, int workers, int hosts) {
  const bool plain = is_plain(algorithm);
  if (in_shares(algorithm)) return exchange::shares_bytes(m, dense, workers, hosts);
  return exchange::received_bytes(plain ? Algorithm::dense : parse_algorithm(algorithm),
                                  plain ? 0.0 : m, dense, workers);
}

}  // namespace

bool in_shares(const std::string& algorithm) {
  return !is_plain(algorithm) && exchange::in_shares(parse_algorithm(algorithm));
}

nlohmann::json combine(const std::string& algorithm, const Group& group, const Options& options,
                       int hosts, const std::vector<nlohmann::json>& ranks) {
  Timings timings;
  for (std::size_t i = 0; i < ranks[0]["runs"].size(); ++i) {
    double slowest = 0.0;
    for (const auto& r : ranks) slowest = std::max(slowest, r["runs"][i].get<double>());
    timings.add(slowest);
  }
  nlohmann::json phases = ranks[0]["phases"];
  std::uint64_t sent = 0;
  std::uint64_t received = 0;
  std::uint64_t messages = 0;
  double m = 0.0;
  for (const auto& r : ranks) {
    std::uint64_t rank_sent = 0;
    std::uint64_t rank_received = 0;
    std::uint64_t rank_messages = 0;
    for (std::size_t p = 0; p < phases.size(); ++p) {
      const auto& phase = r["phases"][p];
      rank_sent += phase["bytes_sent"].get<std::uint64_t>();
      rank_received += phase["bytes_received"].get<std::uint64_t>();
      rank_messages += phase["messages"].get<std::uint64_t>();
      for (const char* key : {"bytes_sent", "bytes_received", "messages"}) {
        phases[p][key] =
            std::max(phases[p][key].get<std::uint64_t>(), phase[key].get<std::uint64_t>());
      }
    }
    sent = std::max(sent, rank_sent);
    received = std::max(received, rank_received);
    messages = std::max(messages, rank_messages);
    m += r["message_bytes"].get<double>() / static_cast<double>(ranks.size());
  }
  const bool shares = in_shares(algorithm);
  const double dense =
      shares ? static_cast<double>(options.elements) : ranks[0]["dense_elements"].get<double>();
  const double all_dense = 8.0 * static_cast<double>(options.elements) * (group.size() - 1) /
                           static_cast<double>(group.size());
  nlohmann::json row = timings.json();
  row["algorithm"] = algorithm;
  row["engine"] = group.engine();
  row["workers"] = group.size();
  row["hosts"] = shares ? hosts : group.size();
  row["elements"] = options.elements;
  row["ratio"] = options.ratio;
  row["values"] = is_plain(algorithm) ? "fp32" : options.values;
  row["bytes_sent"] = sent;
  row["bytes_received"] = received;
  row["messages"] = messages;
  row["message_bytes"] = std::llround(m);
  row["formula_bytes_received"] =
      std::llround(formula_bytes(algorithm, m, dense, group.size(), hosts));
  row["less_than_dense"] = received > 0 ? all_dense / static_cast<double>(received) : 0.0;
  row["phases"] = std::move(phases);
  row["choice"] = ranks[0]["choice"];
  row["costs"] = ranks[0]["costs"];
  row["verified"] = !options.no_verify;
  return row;
}

}  // namespace dgc::bench::exchange_bench
