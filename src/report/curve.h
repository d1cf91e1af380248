// Values over the course of training, for plots.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <vector>

namespace dgc::report {

/// One value of each line, NaN where it is not known; empty when no line has it.
template <typename Line>
std::vector<double> column(const std::vector<Line>& lines, double Line::*value) {
  std::vector<double> values;
  for (const Line& line : lines) values.push_back(line.*value);
  const bool any =
      std::any_of(values.begin(), values.end(), [](double v) { return !std::isnan(v); });
  return any ? values : std::vector<double>();
}

/// The last of these values that is known, or NaN.
template <typename Line>
double last(const std::vector<Line>& lines, double Line::*value) {
  const auto found = std::find_if(lines.rbegin(), lines.rend(),
                                  [&](const Line& line) { return !std::isnan(line.*value); });
  return found == lines.rend() ? std::numeric_limits<double>::quiet_NaN() : *found.*value;
}

/// Indices of at most `most` (8 or more) values that draw the same curve: first and last, and of
/// every stretch the smallest, the largest and a gap (NaN). Increasing.
std::vector<std::size_t> thin(std::span<const double> values, std::size_t most);

/// The mean over the 2 % of the curve around each value; NaN stays NaN. Short curves stay as they
/// are.
std::vector<double> smooth(std::span<const double> values);

}  // namespace dgc::report
