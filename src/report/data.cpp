#include "report/data.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>

#include "report/compare.h"
#include "report/format.h"

namespace dgc::report {
namespace {

using nlohmann::json;

/// Six digits are more than a plot shows, and a third of the size.
json rounded(double value) {
  if (!std::isfinite(value)) return nullptr;
  return std::strtod(fmt::format("{:.6g}", value).c_str(), nullptr);
}

json picked(std::span<const double> values, std::span<const std::size_t> rows) {
  json list = json::array();
  for (const std::size_t row : rows) list.push_back(rounded(values[row]));
  return list;
}

/// A quantity with what it can be drawn against: {"step": [...], "epoch": [...], ..., "y": [...]}.
/// `values` has a value for each row of the curve; null when it is empty.
json quantity(const Curve& curve, std::span<const double> values, bool smoothed = false) {
  if (values.empty()) return nullptr;
  const auto rows = thin(values, kMostPoints);
  json points = {{"y", picked(values, rows)}};
  if (smoothed) points["smooth"] = picked(smooth(values), rows);
  for (const auto& [key, column] : {std::pair{"step", "step"},
                                    {"epoch", "epoch"},
                                    {"time", "seconds"},
                                    {"bytes", "bytes_up"}}) {
    const auto x = curve.column(column);
    if (!x.empty()) points[key] = picked(x, rows);
  }
  return points;
}

/// The share of the entries that is sent. A step with ratio 1 sends everything: how many of the
/// entries happen to be zero does not matter.
std::vector<double> share_sent(const Curve& steps) {
  const auto achieved = steps.column("achieved_ratio");
  const auto ratio = steps.column("ratio");
  std::vector<double> share(achieved.begin(), achieved.end());
  for (std::size_t i = 0; i < share.size() && i < ratio.size(); ++i) {
    if (ratio[i] >= 1.0) share[i] = 1.0;
  }
  return share;
}

json series_of(const Mode& mode) {
  json curves = {{"loss", quantity(mode.steps, mode.steps.column("loss"), true)},
                 {"validation", quantity(mode.evaluations, mode.evaluations.column("loss"))}};
  for (const char* name : {"message_ratio", "traffic_ratio", "lr", "gradient_norm", "residual_norm",
                           "examples_per_second"}) {
    curves[name] = quantity(mode.steps, mode.steps.column(name));
  }
  curves["share"] = quantity(mode.steps, share_sent(mode.steps));
  json metrics = json::object();
  for (const std::string& name : mode.evaluations.names()) {
    if (name.starts_with("metrics.")) {
      metrics[name.substr(8)] = quantity(mode.evaluations, mode.evaluations.column(name));
    }
  }
  curves["metric"] = quantity(mode.evaluations, mode.evaluations.column("metric"));
  return {{"curves", std::move(curves)}, {"metrics", std::move(metrics)}};
}

}  // namespace

std::string page_data(std::span<const Run> runs) {
  json all = json::array();
  const auto names = run_names(runs);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    for (const Mode& mode : runs[i].modes) {
      json series = series_of(mode);
      series["label"] = runs.size() == 1 ? mode.name : fmt::format("{} · {}", names[i], mode.name);
      series["mode"] = mode.name;
      all.push_back(std::move(series));
    }
  }
  const json data = {{"series", std::move(all)},
                     {"metric", runs.empty() ? "" : runs[0].metric_name},
                     {"unit", runs.empty() ? "" : runs[0].metric_unit}};
  std::string safe;
  // Outside strings JSON has no '<'; inside them the escape means the same.
  for (const char c : data.dump(-1, ' ', false, json::error_handler_t::replace)) {
    if (c == '<') {
      safe += "\\u003c";
    } else {
      safe += c;
    }
  }
  return safe;
}

}  // namespace dgc::report
