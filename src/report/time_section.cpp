#include <fmt/format.h>

#include <algorithm>

#include "report/compare.h"
#include "report/format.h"
#include "report/sections.h"

namespace dgc::report {
namespace {

using train::kTimeBeside;
using train::kTimeParts;
using train::TimePart;
using train::Times;

/// The parts of a bar, in the scale of `longest` seconds.
std::string segments(const Times& times, std::span<const TimePart> parts, double longest) {
  std::string html;
  for (const auto& [name, member] : parts) {
    const double seconds = times.*member;
    if (!(seconds > 0.0)) continue;
    const std::string tip = fmt::format("{}: {}, {}", name, seconds_text(seconds),
                                        percent_text(seconds / times.total()));
    html += fmt::format(
        "<span class=\"part {}\" style=\"width:{:.3f}%\" tabindex=\"0\" role=\"img\" "
        "aria-label=\"{}\" data-tip=\"{}\">{}</span>",
        name, 100.0 * seconds / longest, tip, tip, seconds / longest > 0.14 ? name : "");
  }
  return html;
}

/// Both times of a mode that the page has, so that nobody takes them for one.
std::string time_words(const Times& times) {
  if (!(times.total() > 0.0)) return "not known";
  return fmt::format("{} training, {} with evaluation and checkpoints",
                     seconds_text(times.training()), seconds_text(times.total()));
}

std::string bar(const Mode& mode, const std::string& label, std::size_t series, double longest) {
  const Times times = mode.result.time.value_or(Times{});
  std::string html = fmt::format("<div class=\"bar\"><p>{}{}<b>{}</b></p>", swatch(series),
                                 escape(label), time_words(times));
  html += "<div class=\"parts\">" + segments(times, kTimeParts, longest) + "</div>";
  const std::string beside = segments(times, kTimeBeside, longest);
  if (!beside.empty()) html += "<div class=\"parts beside\">" + beside + "</div>";
  return html + "</div>\n";
}

}  // namespace

std::string time_section(std::span<const Run> runs) {
  double longest = 0.0;
  for (const Run& run : runs) {
    for (const Mode& mode : run.modes) {
      if (mode.result.time) longest = std::max(longest, mode.result.time->total());
    }
  }
  if (!(longest > 0.0)) return {};
  const auto names = run_names(runs);
  std::string bars;
  std::size_t series = 0;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    for (const Mode& mode : runs[i].modes) {
      const std::string label = runs.size() > 1 ? names[i] + " · " + mode.name : mode.name;
      bars += bar(mode, label, series++, longest);
    }
  }
  std::string legend;
  for (const TimePart& part : kTimeParts) {
    legend += fmt::format("<li><i class=\"part {0}\"></i>{0}</li>", part.name);
  }
  for (const TimePart& part : kTimeBeside) {
    legend += fmt::format("<li><i class=\"part thin {0}\"></i>{0}</li>", part.name);
  }
  return "<section aria-labelledby=\"time\">\n<h2 id=\"time\">Where the time goes</h2>\n"
         "<p class=\"hint\">Of worker 0. <b>waiting</b> begins when the worker’s own backward is "
         "done, and ends when the gradients of all workers are there. It is the network’s time, "
         "and that of slower workers: where workers share the cores of one machine, most of it is "
         "waiting for the others to compute. The thin bars are work of a thread beside the "
         "computing: it costs time only where it makes the worker wait. (With clipped gradients "
         "it is part of waiting.)</p>\n<div class=\"card\">\n" +
         bars + "<ul class=\"keys\">" + legend + "</ul>\n</div>\n</section>\n";
}

}  // namespace dgc::report
