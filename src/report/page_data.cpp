#include "report/page_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <optional>

#include "dgc/error.h"
#include "dgc/link.h"
#include "report/compare.h"
#include "report/curve.h"
#include "report/format.h"
#include "train/settings.h"

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

/// What curves can be drawn against beside what their lines say.
struct Axes {
  double examples_per_step = kUnknown;
  std::optional<Link> link;      ///< that the run was told of, but did not have
  double delays_per_step = 0.0;  ///< over that link
};

/// A text setting of a run; "" where it has none.
std::string setting(const Run& run, const char* name) {
  if (!run.config.is_object()) return {};
  const auto found = run.config.find(name);
  return found != run.config.end() && found->is_string() ? found->get<std::string>() : "";
}

std::optional<Link> link_of(const Run& run, const char* name) {
  const std::string text = setting(run, name);
  if (text.empty()) return {};
  try {
    return parse_link(name, text);
  } catch (const Error&) {  // of another version
    return {};
  }
}

Axes axes_of(const Run& run, const Mode& mode) {
  Axes axes{.examples_per_step = run.summary.facts.examples_per_step};
  if (setting(run, "emulate-link").empty()) axes.link = link_of(run, "link");
  // An all-gather takes one delay; a dense exchange, and owners, two.
  const bool twice = train::sends_all(mode.name) || setting(run, "algorithm") == "owner" ||
                     setting(run, "algorithm") == "dense";
  axes.delays_per_step = twice ? 2.0 : 1.0;
  if (train::is_local(mode.name) && run.config.contains("local-steps") &&
      run.config["local-steps"].is_number()) {
    axes.delays_per_step /= std::max(1.0, run.config["local-steps"].get<double>());
  }
  return axes;
}

/// A quantity with what it can be drawn against: {"step": [...], "epoch": [...], ..., "y": [...]}.
/// `values` has a value for each of the lines; null when it is empty.
template <typename Line>
json quantity(const std::vector<Line>& lines, std::span<const double> values, const Axes& axes,
              bool smoothed = false) {
  if (values.empty()) return nullptr;
  const auto rows = thin(values, kMostPoints);
  json points = {{"y", picked(values, rows)}};
  if (smoothed) points["smooth"] = picked(smooth(values), rows);
  for (const auto& [key, member] : {std::pair{"step", &Line::step},
                                    {"epoch", &Line::epoch},
                                    {"time", &Line::seconds},
                                    {"bytes", &Line::bytes_up},
                                    {"received", &Line::bytes_down}}) {
    const auto x = column(lines, member);
    if (!x.empty()) points[key] = picked(x, rows);
  }
  const auto computed = [&](const char* key, const auto& of_line) {
    std::vector<double> x;
    for (const Line& line : lines) x.push_back(of_line(line));
    points[key] = picked(x, rows);
  };
  if (std::isfinite(axes.examples_per_step)) {
    computed("examples", [&](const Line& line) { return line.step * axes.examples_per_step; });
  }
  if (axes.link) {
    // Moving the bytes comes on top of what was measured: nothing overlaps.
    computed("link", [&](const Line& line) {
      return line.seconds + line.bytes_down / axes.link->bytes_per_second +
             line.step * axes.delays_per_step * axes.link->delay.count();
    });
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
json metrics_of(const std::vector<EvaluationLine>& evaluations, const Axes& axes) {
  std::map<std::string, std::vector<double>> values;
  for (std::size_t i = 0; i < evaluations.size(); ++i) {
    for (const auto& [name, value] : evaluations[i].metrics) {
      auto& all = values[name];
      all.resize(evaluations.size(), kUnknown);
      all[i] = value;
    }
  }
  json metrics = json::object();
  for (const auto& [name, all] : values) metrics[name] = quantity(evaluations, all, axes);
  return metrics;
}

/// What page.js draws, by its names for it.
json series_of(const Mode& mode, const Axes& axes) {
  const auto of_steps = [&](double StepLine::*value, bool smoothed = false) {
    return quantity(mode.steps, column(mode.steps, value), axes, smoothed);
  };
  const auto of_evaluations = [&](double EvaluationLine::*value) {
    return quantity(mode.evaluations, column(mode.evaluations, value), axes);
  };
  json curves = {{"loss", of_steps(&StepLine::loss, true)},
                 {"validation", of_evaluations(&EvaluationLine::loss)},
                 {"metric", of_evaluations(&EvaluationLine::metric)},
                 {"share", quantity(mode.steps, share_sent(mode.steps), axes)},
                 {"message_ratio", of_steps(&StepLine::message_ratio)},
                 {"traffic_ratio", of_steps(&StepLine::traffic_ratio)},
                 {"lr", of_steps(&StepLine::lr)},
                 {"gradient_norm", of_steps(&StepLine::gradient_norm)},
                 {"residual_norm", of_steps(&StepLine::residual_norm)},
                 {"examples_per_second", of_steps(&StepLine::examples_per_second)}};
  return {{"curves", std::move(curves)}, {"metrics", metrics_of(mode.evaluations, axes)}};
}

}  // namespace

std::string page_data(std::span<const Run> runs) {
  json all = json::array();
  const auto names = run_names(runs);
  bool local = false;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    for (const Mode& mode : runs[i].modes) {
      json series = series_of(mode, axes_of(runs[i], mode));
      local |= train::is_local(mode.name);
      series["label"] = runs.size() == 1 ? mode.name : fmt::format("{} · {}", names[i], mode.name);
      series["mode"] = mode.name;
      all.push_back(std::move(series));
    }
  }
  const auto same_link = [&](const char* name) {
    // Of several runs a word is said that is true of all.
    if (runs.empty() || !link_of(runs[0], name)) return std::string();
    const std::string text = link_text(*link_of(runs[0], name));
    for (const Run& run : runs) {
      const auto link = link_of(run, name);
      if (!link || link_text(*link) != text) return std::string("several links");
    }
    return text;
  };
  const std::string examples = runs.empty() ? "" : runs[0].summary.facts.example_name;
  const json data = {{"series", std::move(all)},
                     // Axes that say more than others: where a step has tokens, where rounds have
                     // other sizes on the way up than down, where a link was emulated, or named.
                     {"examples", examples == "examples" ? "" : examples},
                     {"local", local},
                     {"emulated", same_link("emulate-link")},
                     {"link", same_link("link")},
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
