// Speed-up against nodes as an SVG, one panel for each bandwidth, one line for each method.
//
// Axes are logarithmic above 128 nodes; the dotted line is the ideal speed-up. Lines are named at
// their right end: names that would lie on each other are moved apart, in the order of the lines.
// Colours follow light and dark, and dense methods are dashed.
#include "plan/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/quantity.h"

namespace dgc::plan {
namespace {

// In units of the drawing, which is as wide as a phone: text stays readable there.
constexpr double kWidth = 480, kPanel = 330, kLeft = 46, kRight = 140, kTop = 40, kBottom = 44;
constexpr double kLabel = 15;  // between labels

constexpr const char* kStyle = R"(
svg.plan { color-scheme: light dark; max-width: 760px; width: 100%; height: auto;
  font: 12px system-ui, sans-serif; background: var(--paper);
  --paper: #fff; --ink: #1c1e21; --faint: #d9dce0; --grey: #6b7280;
  --m0: #c0392b; --m1: #b45f06; --m2: #1663b0; --m3: #5b6ee1; --m4: #1d7a46; --m5: #8338a8; }
@media (prefers-color-scheme: dark) { svg.plan {
  --paper: #15181c; --ink: #e8eaed; --faint: #363b42; --grey: #9aa3ad;
  --m0: #ff8f84; --m1: #ffb866; --m2: #74b6ff; --m3: #aab4ff; --m4: #7fd6a2; --m5: #d6a1f0; } }
svg.plan text { fill: var(--ink); } svg.plan .head { font-size: 15px; font-weight: 600; }
svg.plan .panel { font-size: 13px; font-weight: 600; } svg.plan .axis { fill: var(--grey); }
svg.plan .grid { stroke: var(--faint); } svg.plan .ideal { stroke: var(--grey); stroke-dasharray: 2 4; fill: none; }
svg.plan .line { fill: none; stroke-width: 2.2; } svg.plan .dense { stroke-dasharray: 7 4; }
)";

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '<')
      out += "&lt;";
    else if (c == '&')
      out += "&amp;";
    else
      out += c;
  }
  return out;
}

/// One direction of a panel.
struct Axis {
  double from, to;  // in the drawing
  double low, high;
  bool logarithmic;

  double at(double value) const {
    const double share =
        logarithmic ? std::log(value / low) / std::log(high / low) : (value - low) / (high - low);
    return from + (to - from) * share;
  }
  std::vector<double> ticks() const {
    // A factor, or a step, of about the same size for all scales; rounding keeps the last one.
    const double power = std::pow(2.0, std::round(std::log2(std::max(1.0, (high - low) / 5.0))));
    const double last = logarithmic ? std::log(high / low) / std::log(4.0) : high / power;
    std::vector<double> values;
    for (int i = 0; i <= static_cast<int>(last + 0.001); ++i) {
      values.push_back(logarithmic ? low * std::pow(4.0, i) : power * i);
    }
    return values;
  }
};

using Lines = std::map<Method, std::vector<Prediction>>;

Lines lines_of(const Panel& panel) {
  Lines lines;
  for (const Prediction& p : panel.predictions) lines[p.method].push_back(p);
  for (auto& [method, line] : lines) {
    std::sort(line.begin(), line.end(),
              [](const auto& a, const auto& b) { return a.nodes < b.nodes; });
  }
  return lines;
}

std::string speedup_text(double speedup) {
  return speedup < 9.95 ? fmt::format("{:.1f}x", speedup) : fmt::format("{:.0f}x", speedup);
}

/// Names at the ends of the lines, moved apart where they would overlap.
std::string labels(const Lines& lines, const Axis& y, double right, double top, double bottom) {
  struct Place {
    Method method;
    double wanted, y;
    std::string text;
  };
  std::vector<Place> places;
  for (const auto& [method, line] : lines) {
    const double end = y.at(line.back().speedup);
    places.push_back({method, end, end,
                      fmt::format("{} {}", title_of(method), speedup_text(line.back().speedup))});
  }
  std::sort(places.begin(), places.end(),
            [](const auto& a, const auto& b) { return a.wanted < b.wanted; });
  for (std::size_t i = 0; i < places.size(); ++i) {
    const double least = i == 0 ? top : places[i - 1].y + kLabel;
    places[i].y = std::max(places[i].y, least);
  }
  double most = bottom;
  for (std::size_t i = places.size(); i-- > 0; most = places[i].y - kLabel) {
    places[i].y = std::min(places[i].y, most);
  }
  std::string text;
  for (const Place& place : places) {
    text += fmt::format(
        "<path d='M{:.1f} {:.1f}L{:.1f} {:.1f}' stroke='var(--m{})' stroke-width='1'/>"
        "<text x='{:.1f}' y='{:.1f}' style='fill:var(--m{})'>{}</text>\n",
        right + 3, place.wanted, right + 11, place.y, static_cast<int>(place.method), right + 13,
        place.y + 4, static_cast<int>(place.method), place.text);
  }
  return text;
}

std::string panel_svg(const Panel& panel, double top) {
  const Lines lines = lines_of(panel);
  double nodes = 2.0;
  double workers = 2.0;
  double least = 1.0;  // several nodes may be slower than one
  for (const Prediction& p : panel.predictions) {
    least = std::min(least, p.speedup);
    nodes = std::max<double>(nodes, p.nodes);
    workers = std::max<double>(workers, p.workers);
  }
  const bool logarithmic = nodes > 128.0;
  const double right = kWidth - kRight;
  const double bottom = top + kPanel - kBottom;
  const Axis x{kLeft, right, logarithmic ? 1.0 : 0.0, nodes, logarithmic};
  const double low = std::pow(4.0, std::floor(std::log(least) / std::log(4.0)));
  const Axis y{bottom, top + kTop, logarithmic ? low : 0.0, workers, logarithmic};
  std::string svg = fmt::format("<text class='panel' x='{}' y='{}'>{}</text>\n", 8, top + 22,
                                escaped(panel.title));
  for (const double tick : y.ticks()) {
    svg += fmt::format(
        "<path class='grid' d='M{} {:.1f}H{}'/><text class='axis' x='{}' y='{:.1f}' "
        "text-anchor='end'>{:g}</text>\n",
        kLeft, y.at(tick), right, kLeft - 6, y.at(tick) + 4, tick);
  }
  for (const double tick : x.ticks()) {
    svg += fmt::format(
        "<path class='grid' d='M{0:.1f} {1:.1f}V{2}'/><text class='axis' x='{0:.1f}' y='{3:.1f}' "
        "text-anchor='middle'>{4:g}</text>\n",
        x.at(tick), bottom, top + kTop, bottom + 16, tick);
  }
  svg += fmt::format(
      "<text class='axis' x='{:.1f}' y='{:.1f}' text-anchor='middle'>nodes</text>"
      "<path class='ideal' d='M{:.1f} {:.1f}L{:.1f} {:.1f}'/>\n",
      (kLeft + right) / 2, bottom + 32, x.at(1.0), y.at(workers / nodes), x.at(nodes),
      y.at(workers));
  for (const auto& [method, line] : lines) {
    std::string path;
    std::string points;
    for (const Prediction& p : line) {
      const double px = x.at(p.nodes);
      const double py = y.at(p.speedup);
      path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", px, py);
      points += fmt::format(
          "<circle cx='{:.1f}' cy='{:.1f}' r='2.8' fill='var(--m{})'><title>{}, {} nodes: {}, {} a "
          "step</title></circle>\n",
          px, py, static_cast<int>(method), title_of(method), p.nodes, speedup_text(p.speedup),
          duration_text(p.step));
    }
    svg += fmt::format("<path class='line{}' stroke='var(--m{})' d='{}'/>\n{}",
                       compresses(method) ? "" : " dense", static_cast<int>(method), path, points);
  }
  return svg + labels(lines, y, right, top + kTop, bottom);
}

std::string table_html(const Panel& panel) {
  std::string html = fmt::format(
      "<h2>{}</h2><div class='wide'><table><tr><th>nodes<th>method<th>step<th>speed-up"
      "<th>efficiency</tr>\n",
      escaped(panel.title));
  for (const Prediction& p : panel.predictions) {
    html +=
        fmt::format("<tr><td>{}<td>{}<td>{}<td>{}<td>{:.0f} %</tr>\n", p.nodes, title_of(p.method),
                    duration_text(p.step), speedup_text(p.speedup), 100.0 * p.efficiency);
  }
  return html + "</table></div>\n";
}

/// A long note in lines that fit.
std::vector<std::string> folded(const std::string& note, std::size_t width) {
  std::vector<std::string> lines(1);
  std::size_t begin = 0;
  while (begin < note.size()) {
    const std::size_t end = std::min(note.find(' ', begin), note.size());
    if (!lines.back().empty() && lines.back().size() + end - begin + 1 > width)
      lines.emplace_back();
    if (!lines.back().empty()) lines.back() += ' ';
    lines.back() += note.substr(begin, end - begin);
    begin = end + 1;
  }
  return lines;
}

}  // namespace

std::string chart_svg(const std::string& title, const std::string& note,
                      const std::vector<Panel>& panels) {
  const std::vector<std::string> lines = folded(note, 72);
  const double head = 26.0;
  const double height = head + kPanel * static_cast<double>(panels.size()) +
                        16.0 * static_cast<double>(lines.size()) + 8.0;
  std::string svg = fmt::format(
      "<svg xmlns='http://www.w3.org/2000/svg' class='plan' viewBox='0 0 {} {}' role='img' "
      "aria-label='{}'>\n<style>{}</style>\n<rect width='100%' height='100%' "
      "fill='var(--paper)'/>\n"
      "<text class='head' x='8' y='20'>{}</text>\n",
      kWidth, height, escaped(title), kStyle, escaped(title));
  double top = head;
  for (const Panel& panel : panels) {
    svg += panel_svg(panel, top);
    top += kPanel;
  }
  for (const std::string& line : lines) {
    top += 16.0;
    svg += fmt::format("<text class='axis' x='8' y='{:.0f}'>{}</text>\n", top - 6, escaped(line));
  }
  return svg + "</svg>\n";
}

std::string chart_html(const std::string& title, const std::string& note,
                       const std::vector<Panel>& panels) {
  std::string html = fmt::format(
      "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>\n"
      "<meta name='viewport' content='width=device-width, initial-scale=1'>\n<title>{}</title>\n"
      "<style>:root {{ color-scheme: light dark; }} body {{ font: 15px system-ui, sans-serif; "
      "margin: 1em auto; "
      "max-width: 760px; padding: 0 .7em; }} .wide {{ overflow-x: auto; }} h2 {{ font-size: "
      "1.05em; }}\n"
      "table {{ border-collapse: collapse; width: 100%; }} td, th {{ padding: .25em .6em; "
      "text-align: right; }} "
      "tr {{ border-bottom: 1px solid #8884; }} td:nth-child(2), th:nth-child(2) {{ text-align: "
      "left; }}</style>\n"
      "</head><body>\n{}",
      escaped(title), chart_svg(title, note, panels));
  for (const Panel& panel : panels) html += table_html(panel);
  return html + "</body></html>\n";
}

}  // namespace dgc::plan
