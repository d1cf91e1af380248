#include "report/sections.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "report/compare.h"
#include "report/format.h"

namespace dgc::report {
namespace {

/// "fashion", "cnn", "224,714 parameters", "4 workers", ...
std::vector<std::string> facts(const Run& run) {
  const train::Summary& summary = run.summary;
  std::vector<std::string> list;
  const auto add = [&](const std::string& text) {
    if (!text.empty()) list.push_back(text);
  };
  const auto number = [&](double value, const char* before, const char* after) {
    if (std::isfinite(value)) list.push_back(before + count_text(value) + after);
  };
  add(summary.recipe);
  add(summary.facts.model);
  number(summary.facts.parameters, "", " parameters");
  number(summary.facts.workers, "", " workers");
  add(summary.facts.engine);
  number(summary.seed, "seed ", "");
  add(summary.cpu);
  number(summary.cores, "", " cores");
  if (!summary.facts.libtorch.empty()) add("libtorch " + summary.facts.libtorch);
  std::string date = summary.date;
  if (date.size() == 20 && date[10] == 'T') date = date.substr(0, 10) + " " + date.substr(11, 5);
  if (!date.empty()) list.push_back(date + " UTC");
  return list;
}

/// The first sentence as a headline, the others below it.
std::string headline(const Run& run) {
  const auto sentences = comparison_sentences(run);
  std::string first = sentences.empty() ? run.name : sentences.front();
  if (first.starts_with("dgc ")) first.replace(0, 3, "DGC");
  std::string html = fmt::format("<h1>{}</h1>\n", escape(first));
  for (std::size_t i = 1; i < sentences.size(); ++i) {
    html += fmt::format("<p class=\"second\">{}</p>\n", escape(sentences[i]));
  }
  return html;
}

std::string tile(const std::string& value, const std::string& unit, const std::string& label,
                 const std::string& more) {
  return fmt::format(
      "<div class=\"tile\"><p class=\"value\">{}<span>{}</span></p><p class=\"label\">{}</p>"
      "<p class=\"more\">{}</p></div>\n",
      cell_text(value), escape(unit), escape(label), escape(more));
}

/// Two ratios of equal rank: warm-up sends more, and belongs to the run.
std::string ratio_tile(double total, double steady, const char* label) {
  const auto value = [](double ratio, const char* of) {
    return fmt::format("<p class=\"value\">{}<span>× {}</span></p>", cell_text(ratio_text(ratio)),
                       of);
  };
  // Where there is no warm-up they are one.
  if (ratio_text(total) == ratio_text(steady)) {
    return fmt::format("<div class=\"tile\">{}<p class=\"label\">{}</p></div>\n",
                       value(total, "whole run"), label);
  }
  return fmt::format("<div class=\"tile\">{}{}<p class=\"label\">{}</p></div>\n",
                     value(total, "whole run"), value(steady, "after warm-up"), label);
}

/// The figures of the mode that the report is about: dgc, or the first that is not dense.
std::string tiles(const Run& run) {
  const Mode* shown = nullptr;
  for (const Mode& mode : run.modes) {
    const bool ours = mode.name == "dgc" || mode.name == "dgc-local";
    if (ours || (shown == nullptr && mode.name != "dense")) shown = &mode;
  }
  if (shown == nullptr) return {};
  const train::Result& result = shown->result;
  const Mode* const dense = run.dense();
  const bool percent = run.summary.facts.metric_unit == "%";
  std::string than;
  if (dense != nullptr) {
    than = fmt::format("dense: {}{}", metric_text(dense->result.metric), percent ? " %" : "");
  }
  std::string html =
      tile(metric_text(result.metric), percent ? " %" : "",
           fmt::format("{} of {}", run.summary.facts.metric_name, shown->name), than);
  html += ratio_tile(result.message_ratio_total, result.message_ratio, "smaller messages");
  html += ratio_tile(result.traffic_ratio_total, result.traffic_ratio, "less traffic per worker");
  std::string times;
  if (dense != nullptr) times = "dense: " + seconds_text(dense->result.seconds);
  html += tile(seconds_text(result.seconds), "", "training time", times);
  return "<div class=\"tiles\">\n" + html + "</div>\n";
}

std::string notes(std::span<const Run> runs) {
  std::string items;
  const auto names = run_names(runs);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    for (const std::string& note : runs[i].notes) {
      items += fmt::format("<li>{}{}</li>\n",
                           runs.size() > 1 ? "<b>" + escape(names[i]) + "</b>: " : std::string(),
                           escape(note));
    }
  }
  if (items.empty()) return {};
  return "<aside class=\"notes\" aria-label=\"Notes\"><ul>\n" + items + "</ul></aside>\n";
}

}  // namespace

std::string swatch(std::size_t series) {
  return fmt::format(
      "<svg class=\"swatch c{} d{}\" viewBox=\"0 0 28 8\" aria-hidden=\"true\">"
      "<path d=\"M1 4H27\"/></svg>",
      series % 8, series % 5);
}

std::string cell_text(const std::string& cell) {
  if (cell == kNothing) return "–";
  const bool negative = cell.size() > 1 && cell[0] == '-' && cell[1] >= '0' && cell[1] <= '9';
  return negative ? "−" + escape(cell.substr(1)) : escape(cell);
}

std::string header_section(std::span<const Run> runs) {
  std::string html = "<header>\n<p class=\"brand\">dgc <span>training report</span></p>\n";
  if (runs.size() == 1) {
    html += headline(runs[0]);
    html += "<ul class=\"facts\">";
    for (const std::string& text : facts(runs[0])) html += "<li>" + escape(text) + "</li>";
    html += "</ul>\n";
  } else {
    html += fmt::format("<h1>{} runs compared</h1>\n<ul class=\"words\">\n", runs.size());
    const auto names = run_names(runs);
    for (std::size_t i = 0; i < runs.size(); ++i) {
      const std::string words = comparison_words(runs[i]);
      html += fmt::format("<li><b>{}</b>: {}</li>\n", escape(names[i]), escape(words));
    }
    html += "</ul>\n";
  }
  return html + "</header>\n" + notes(runs);
}

std::string results_section(std::span<const Run> runs) {
  const auto rows = comparison_rows(runs);
  std::string html = "<section aria-labelledby=\"results\">\n<h2 id=\"results\">Results</h2>\n";
  if (runs.size() == 1) html += tiles(runs[0]);
  if (rows.size() == 1) return html + "<p>No mode has begun to train.</p>\n</section>\n";
  const std::size_t heads = runs.size() > 1 ? 2 : 1;  // columns of text: run and mode
  html +=
      "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Results by mode\">"
      "<table class=\"results\">\n<thead><tr>";
  for (std::size_t c = 0; c < rows[0].size(); ++c) {
    html += fmt::format("<th scope=\"col\"{}>{}</th>", c < heads ? "" : " class=\"n\"",
                        escape(rows[0][c]));
  }
  html += "</tr></thead>\n<tbody>\n";
  for (std::size_t r = 1; r < rows.size(); ++r) {
    html += "<tr>";
    for (std::size_t c = 0; c < rows[r].size(); ++c) {
      if (c < heads) {
        html += fmt::format("<th scope=\"row\">{}<span>{}</span></th>", c == 0 ? swatch(r - 1) : "",
                            cell_text(rows[r][c]));
      } else {
        const bool ratio = c + 3 >= rows[r].size() && rows[r][c] != kNothing;
        html += fmt::format("<td class=\"n\">{}{}</td>", cell_text(rows[r][c]), ratio ? "×" : "");
      }
    }
    html += "</tr>\n";
  }
  return html +
         "</tbody></table></div>\n<p class=\"hint\">Message ratio and traffic ratio are those "
         "after "
         "warm-up, “with warm-up” is the message ratio over all steps; <a href=\"#terms\">what the "
         "words mean</a>.</p>\n</section>\n";
}

}  // namespace dgc::report
