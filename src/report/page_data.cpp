#include "report/page_data.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <map>

#include "report/compare.h"
#include "report/curve.h"
#include "report/format.h"

namespace dgc::report {
namespace {

using nlohmann::json;
using train::EvaluationLine;
using train::StepLine;

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
/// `values` has a value for each of the lines; null when it is empty.
template <typename Line>
json quantity(const std::vector<Line>& lines, std::span<const double> values,
              bool smoothed = false) {
  if (values.empty()) return nullptr;
  const auto rows = thin(values, kMostPoints);
  json points = {{"y", picked(values, rows)}};
  if (smoothed) points["smooth"] = picked(smooth(values), rows);
  for (const auto& [key, member] : {std::pair{"step", &Line::step},
                                    {"epoch", &Line::epoch},
                                    {"time", &Line::seconds},
                                    {"bytes", &Line::bytes_up}}) {
    const auto x = column(lines, member);
    if (!x.empty()) points[key] = picked(x, rows);
  }
  return points;
}

/// The share of the entries that is sent. A step with ratio 1 sends everything: how many of the
/// entries happen to be zero does not matter.
std::vector<double> share_sent(const std::vector<StepLine>& steps) {
  std::vector<double> share = column(steps, &StepLine::achieved_ratio);
  for (std::size_t i = 0; i < share.size(); ++i) {
    if (steps[i].ratio >= 1.0) share[i] = 1.0;
  }
  return share;
}

/// The metrics of the evaluations by name, each with a value for every evaluation.
json metrics_of(const std::vector<EvaluationLine>& evaluations) {
  std::map<std::string, std::vector<double>> values;
  for (std::size_t i = 0; i < evaluations.size(); ++i) {
    for (const auto& [name, value] : evaluations[i].metrics) {
      auto& all = values[name];
      all.resize(evaluations.size(), kUnknown);
      all[i] = value;
    }
  }
  json metrics = json::object();
  for (const auto& [name, all] : values) metrics[name] = quantity(evaluations, all);
  return metrics;
}

/// What page.js draws, by its names for it.
json series_of(const Mode& mode) {
  const auto of_steps = [&](double StepLine::*value, bool smoothed = false) {
    return quantity(mode.steps, column(mode.steps, value), smoothed);
  };
  const auto of_evaluations = [&](double EvaluationLine::*value) {
    return quantity(mode.evaluations, column(mode.evaluations, value));
  };
  json curves = {{"loss", of_steps(&StepLine::loss, true)},
                 {"validation", of_evaluations(&EvaluationLine::loss)},
                 {"metric", of_evaluations(&EvaluationLine::metric)},
                 {"share", quantity(mode.steps, share_sent(mode.steps))},
                 {"message_ratio", of_steps(&StepLine::message_ratio)},
                 {"traffic_ratio", of_steps(&StepLine::traffic_ratio)},
                 {"lr", of_steps(&StepLine::lr)},
                 {"gradient_norm", of_steps(&StepLine::gradient_norm)},
                 {"residual_norm", of_steps(&StepLine::residual_norm)},
                 {"examples_per_second", of_steps(&StepLine::examples_per_second)}};
  return {{"curves", std::move(curves)}, {"metrics", metrics_of(mode.evaluations)}};
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
                     {"metric", runs.empty() ? "" : runs[0].summary.facts.metric_name},
                     {"unit", runs.empty() ? "" : runs[0].summary.facts.metric_unit}};
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
