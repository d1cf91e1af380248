// Values over the course of training, as metrics.jsonl has them.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace dgc::report {

/// A table with named columns of equal length. NaN stands for a value that is absent or not finite.
class Curve {
 public:
  using Row = std::map<std::string, double, std::less<>>;

  std::size_t rows() const noexcept { return rows_; }
  /// Names in alphabetical order.
  std::vector<std::string> names() const;
  /// A column; empty when no row has a value under that name.
  std::span<const double> column(std::string_view name) const;
  /// The last value of a column that is not NaN, or NaN.
  double last(std::string_view name) const;

  /// Adds a row. Where its "step" is not above the one before, the run was resumed from a
  /// checkpoint: the rows from that step on are replaced.
  void add(const Row& row);

 private:
  std::size_t rows_ = 0;
  std::map<std::string, std::vector<double>, std::less<>> columns_;
};

/// The two kinds of lines of a metrics.jsonl, and how many lines could not be read.
struct Metrics {
  Curve steps;
  Curve evaluations;
  std::size_t bad_lines = 0;  ///< not counting a last line without line end
  std::size_t first_bad = 0;  ///< its number, from 1
  bool cut_off = false;       ///< the last line is not whole: the run was killed, or is running
};

/// Nested objects become "time.data", "metrics.top-5". Throws Error(io) when the file cannot be
/// read; lines that are no JSON objects are only counted.
Metrics read_metrics(const std::filesystem::path& file);

/// Indices of at most `most` (8 or more) values that draw the same curve: first and last, and of
/// every stretch the smallest, the largest and a gap (NaN). Increasing.
std::vector<std::size_t> thin(std::span<const double> values, std::size_t most);

/// The mean over the 2 % of the curve around each value; NaN stays NaN. Short curves stay as they
/// are.
std::vector<double> smooth(std::span<const double> values);

}  // namespace dgc::report
