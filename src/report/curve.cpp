#include "report/curve.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/file.h"

namespace dgc::report {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

void flatten(const nlohmann::json& object, const std::string& prefix, Curve::Row& row) {
  for (const auto& [name, value] : object.items()) {
    if (value.is_object() && prefix.empty()) {
      flatten(value, name + ".", row);
    } else if (value.is_number()) {
      const auto number = value.get<double>();
      if (std::isfinite(number)) row[prefix + name] = number;
    }
  }
}

}  // namespace

std::vector<std::string> Curve::names() const {
  std::vector<std::string> names;
  for (const auto& [name, values] : columns_) names.push_back(name);
  return names;
}

std::span<const double> Curve::column(std::string_view name) const {
  const auto found = columns_.find(name);
  return found == columns_.end() ? std::span<const double>() : found->second;
}

double Curve::last(std::string_view name) const {
  const auto values = column(name);
  for (std::size_t i = values.size(); i-- > 0;) {
    if (!std::isnan(values[i])) return values[i];
  }
  return kNan;
}

void Curve::add(const Row& row) {
  if (const auto step = row.find("step"); step != row.end()) {
    const auto before = column("step");
    std::size_t keep = rows_;
    while (keep > 0 && !before.empty() && before[keep - 1] >= step->second) --keep;
    rows_ = keep;
  }
  for (auto& [name, values] : columns_) {
    values.resize(rows_);
    values.push_back(kNan);
  }
  for (const auto& [name, value] : row) {
    auto& values = columns_[name];
    values.resize(rows_ + 1, kNan);
    values[rows_] = value;
  }
  ++rows_;
}

Metrics read_metrics(const std::filesystem::path& path) {
  const MappedFile file(path);
  std::string_view text(reinterpret_cast<const char*>(file.contents().data()),
                        file.contents().size());
  Metrics metrics;
  for (std::size_t line = 1; !text.empty(); ++line) {
    const std::size_t end = text.find('\n');
    const bool last = end == std::string_view::npos;
    const std::string_view content = text.substr(0, end);
    text.remove_prefix(last ? text.size() : end + 1);
    if (content.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const auto object = nlohmann::json::parse(content, nullptr, false);
    if (!object.is_object()) {
      if (last) {
        metrics.cut_off = true;
      } else if (metrics.bad_lines++ == 0) {
        metrics.first_bad = line;
      }
      continue;
    }
    const auto type = object.find("type");
    if (type == object.end()) continue;
    Curve::Row row;
    flatten(object, "", row);
    if (*type == "step") metrics.steps.add(row);
    if (*type == "evaluation") metrics.evaluations.add(row);
  }
  return metrics;
}

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
