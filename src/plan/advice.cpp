// From predictions to advice.
//
// The fastest dense method is compared with the fastest compressing one. Of methods that are equal
// within 3 % the first is taken: dense before compressing, exact before selected twice. Compression
// pays where it saves kWorthwhile of the dense step. Its gain falls as bandwidth grows, so the
// bandwidth below which it pays is found by bisection, on a logarithmic scale.
#include "plan/advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/quantity.h"

namespace dgc::plan {
namespace {

/// Of a step's computing, what backward takes: two passes of three.
constexpr double kBackward = 2.0 / 3.0;

/// Beyond any network.
constexpr double kMostBandwidth = 1e13;

double fastest(const std::vector<Prediction>& predictions, bool compressing) {
  double least = std::numeric_limits<double>::infinity();
  for (const Prediction& p : predictions) {
    if (compresses(p.method) == compressing) least = std::min(least, p.step);
  }
  return least;
}

/// The first that is within 3 % of the fastest.
const Prediction& best_of(const std::vector<Prediction>& predictions, bool compressing) {
  constexpr double kAlike = 1.03;
  const double least = fastest(predictions, compressing);
  return *std::find_if(predictions.begin(), predictions.end(), [&](const Prediction& p) {
    return compresses(p.method) == compressing && p.step <= kAlike * least;
  });
}

/// How many times a dense step is as long as a compressed one.
double gain_of(const std::vector<Prediction>& predictions) {
  return fastest(predictions, false) / fastest(predictions, true);
}

/// The bandwidth at which the gain falls to what is worth while: it falls as bandwidth grows.
double break_even(Scenario setup, const std::vector<Prediction>& predictions) {
  const auto pays_at = [&](double bandwidth) {
    setup.bandwidth = bandwidth;
    std::vector<Prediction> there;
    for (const Prediction& p : predictions) there.push_back(predict(setup, p.method, p.nodes));
    return gain_of(there) * (1.0 - kWorthwhile) > 1.0;
  };
  double low = 1e5;
  double high = kMostBandwidth;
  if (!pays_at(low)) return 0.0;
  for (int i = 0; i < 60; ++i) {
    const double middle = std::sqrt(low * high);
    (pays_at(middle) ? low : high) = middle;
  }
  return low;
}

/// Two digits: the model knows no more.
double rounded(double bits) {
  if (bits <= 0.0) return 0.0;
  const double unit = std::pow(10.0, std::floor(std::log10(bits)) - 1.0);
  return std::round(bits / unit) * unit;
}

}  // namespace

Advice advise(const Scenario& setup, const std::vector<Prediction>& predictions) {
  Advice advice;
  if (predictions.front().workers == 1) {
    advice.text = "one worker has nothing to exchange";
    return advice;
  }
  const Prediction& dense = best_of(predictions, false);
  const Prediction& sparse = best_of(predictions, true);
  advice.gain = gain_of(predictions);
  advice.pays = advice.gain * (1.0 - kWorthwhile) > 1.0;
  advice.method = advice.pays ? sparse.method : dense.method;
  advice.below = rounded(break_even(setup, predictions));
  const std::string limit = advice.below == 0.0 ? "at no bandwidth"
                            : advice.below > kMostBandwidth / 2
                                ? "at any bandwidth, as far as these assumptions hold"
                                : "below " + bandwidth_text(advice.below);
  if (advice.pays) {
    advice.text = fmt::format("{}: {} a step, {:.3g}x faster than {}; compression pays {}",
                              title_of(sparse.method), duration_text(sparse.step),
                              dense.step / sparse.step, title_of(dense.method), limit);
    // Cores that all share have nothing to spare for overlapping.
    if (setup.shared_cores == 0 && dense.coding + dense.network <= kBackward * dense.compute) {
      advice.text += ", unless the dense exchange is hidden behind backward, where it would fit";
    }
  } else {
    advice.text =
        fmt::format("{}: compression does not pay here ({} a step, {} with {}); it does {}",
                    title_of(dense.method), duration_text(dense.step), duration_text(sparse.step),
                    title_of(sparse.method), limit);
  }
  return advice;
}

std::string assumptions_text(const Scenario& setup) {
  const Costs& c = setup.costs;
  std::string text = fmt::format(
      "Assumptions: computing, coding and moving follow each other without overlap. The network\n"
      "delivers {:.0f} % of its bandwidth and takes {} for a message",
      100.0 * setup.payload, duration_text(setup.latency));
  if (setup.workers_per_node > 1) {
    text += fmt::format("; inside a node it has {}", bandwidth_text(setup.inside));
  }
  text += fmt::format(
      ".\nA core takes {} to select from an element, {} to encode an entry, {} to add one, {} to\n"
      "place one densely; {} an element to send entries densely, {} ({} as fp16) to average one;\n"
      "{} for a byte, {} for a message, {} for a round of messages. `auto` of an exchange "
      "measures\n"
      "these (dgc info --group).\nCompression pays if it saves {:.0f} % of the dense step. "
      "--latency and --costs FILE change these.\n",
      duration_text(c.select), duration_text(c.encode), duration_text(c.entry),
      duration_text(c.place), duration_text(c.slice), duration_text(c.dense),
      duration_text(c.dense16), duration_text(c.byte), duration_text(c.message),
      duration_text(c.round), 100.0 * kWorthwhile);
  return text;
}

}  // namespace dgc::plan
