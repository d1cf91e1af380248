// Curves for plots: fewer points, and less noise.
//
// thin: the curve is cut into equal stretches; of each stay the smallest value, the largest, and a
// gap if there is one. So spikes and gaps are never lost, which every n-th point would lose.
// smooth: the mean over the 2 % of the curve around each value, from prefix sums, with the same
// reach on both sides.
#include "report/curve.h"

namespace dgc::report {

std::vector<std::size_t> thin(std::span<const double> values, std::size_t most) {
  const std::size_t n = values.size();
  std::vector<std::size_t> kept;
  if (n <= most) {
    for (std::size_t i = 0; i < n; ++i) kept.push_back(i);
    return kept;
  }
  // Two values and a gap of each stretch, and both ends.
  const std::size_t stretches = (most - 2) / 3;
  kept.push_back(0);
  for (std::size_t s = 0; s < stretches; ++s) {
    const std::size_t begin = s * n / stretches;
    const std::size_t end = (s + 1) * n / stretches;
    std::size_t low = end;
    std::size_t high = end;
    std::size_t gap = end;
    for (std::size_t i = begin; i < end; ++i) {
      if (std::isnan(values[i])) {
        if (gap == end) gap = i;
        continue;
      }
      if (low == end || values[i] < values[low]) low = i;
      if (high == end || values[i] > values[high]) high = i;
    }
    for (const std::size_t i : {low, high, gap}) {
      if (i != end) kept.push_back(i);
    }
  }
  kept.push_back(n - 1);
  std::sort(kept.begin(), kept.end());
  kept.erase(std::unique(kept.begin(), kept.end()), kept.end());
  return kept;
}

std::vector<double> smooth(std::span<const double> values) {
  const std::size_t n = values.size();
  const std::size_t reach = n / 100;  // on each side
  std::vector<double> means(values.begin(), values.end());
  if (reach == 0) return means;
  // Prefix sums of what is there: a window costs the same however wide it is.
  std::vector<double> sums(n + 1, 0.0);
  std::vector<std::size_t> counts(n + 1, 0);
  for (std::size_t i = 0; i < n; ++i) {
    const bool there = !std::isnan(values[i]);
    sums[i + 1] = sums[i] + (there ? values[i] : 0.0);
    counts[i + 1] = counts[i] + (there ? 1 : 0);
  }
  for (std::size_t i = 0; i < n; ++i) {
    if (std::isnan(values[i])) continue;
    // The same reach on both sides, also near the ends: a lopsided window would bend the curve.
    const std::size_t r = std::min({reach, i, n - 1 - i});
    means[i] =
        (sums[i + r + 1] - sums[i - r]) / static_cast<double>(counts[i + r + 1] - counts[i - r]);
  }
  return means;
}

}  // namespace dgc::report
