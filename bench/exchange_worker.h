// What one worker of `dgc bench exchange` does.
#pragma once

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "dgc/compressor.h"
#include "dgc/group.h"
#include "dgc/link.h"

namespace dgc::bench::exchange_bench {

/// Not an algorithm of Exchange: the floats themselves, for comparison.
inline const std::string kPlain = "all_reduce";
/// The engine's own, where it has one.
inline const std::string kNative = "gloo allreduce";
/// Exchange's algorithms by their names, and these two.
const std::vector<std::string>& contender_names();

struct Options {
  std::string engine;
  int workers = 4;
  bool workers_given = false;
  std::uint64_t elements = 25'600'000;
  double ratio = 0.001;
  std::vector<std::string> algorithms = {"all"};
  std::string values = "fp16";
  int steps = 10;
  double timeout = 60.0;  ///< seconds
  std::string link;       ///< to emulate, as parse_link has it; empty: none
  std::string assume;     ///< link that `auto` takes for granted; empty: it is measured
  bool no_verify = false;
  bool as_json = false;
  bool quiet = false;

  bool wants(const std::string& name) const {
    return std::any_of(algorithms.begin(), algorithms.end(),
                       [&](const std::string& a) { return a == "all" || a == name; });
  }
  std::optional<Link> assumed_link() const {
    return assume.empty() ? std::nullopt : std::optional(parse_link("--assume-link", assume));
  }
};

/// Throws Error(invalid_argument) for values that there are not.
CompressOptions settings_of(const Options& options);

/// Everything one rank does. The result is that of all ranks, on rank 0 only; what goes wrong here
/// is thrown, and the other ranks are told.
nlohmann::json work(Group& group, const Options& options);

}  // namespace dgc::bench::exchange_bench
