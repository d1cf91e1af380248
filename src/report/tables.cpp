#include <fmt/format.h>

#include <cmath>

#include "report/compare.h"
#include "report/format.h"
#include "report/sections.h"
#include "train/settings.h"

namespace dgc::report {
namespace {

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text;
  for (const std::int64_t size : shape) text += (text.empty() ? "" : "×") + std::to_string(size);
  return text.empty() ? std::string(kNothing) : text;
}

/// A number that sorts as such: the script reads data-v.
std::string sortable(double value, const std::string& text) {
  return fmt::format("<td class=\"n\" data-v=\"{}\">{}</td>",
                     std::isfinite(value) ? fmt::format("{}", value) : "-1", cell_text(text));
}

/// A run of version 0.1 calls tensors sparse also in modes that select nothing.
bool is_sparse(const Mode& mode, const train::TensorLine& tensor) {
  return tensor.mode == "sparse" && !train::sends_all(mode.name);
}

std::string tensor_table(const Mode& mode) {
  double message = 0.0;
  for (const train::TensorLine& tensor : mode.tensors) {
    if (std::isfinite(tensor.bytes)) message += tensor.bytes;
  }
  std::string html =
      "<div class=\"scroll tall\" tabindex=\"0\" role=\"region\" aria-label=\"Tensors\">"
      "<table class=\"sortable\">\n<thead><tr><th scope=\"col\">tensor</th>"
      "<th scope=\"col\">shape</th><th scope=\"col\">sent</th>"
      "<th scope=\"col\" class=\"n\">elements</th><th scope=\"col\" class=\"n\">k</th>"
      "<th scope=\"col\" class=\"n\">bytes</th><th scope=\"col\" class=\"n\">of message</th>"
      "<th scope=\"col\">why</th></tr></thead>\n<tbody>\n";
  for (const train::TensorLine& tensor : mode.tensors) {
    const double share = message > 0.0 ? tensor.bytes / message : kUnknown;
    html += fmt::format("<tr><th scope=\"row\" class=\"code\">{}</th>", escape(tensor.name));
    html += fmt::format("<td class=\"code\">{}</td>", cell_text(shape_text(tensor.shape)));
    const bool sparse = is_sparse(mode, tensor);
    const bool relabelled = tensor.mode == "sparse" && !sparse;
    const std::string sent = relabelled ? "dense" : tensor.mode;
    html += fmt::format("<td><span class=\"tag {}\">{}</span></td>",
                        sparse            ? "sparse"
                        : sent == "dense" ? "whole"
                                          : "none",
                        escape(sent));
    html += sortable(tensor.elements, count_text(tensor.elements));
    html += sortable(tensor.k, count_text(tensor.k));
    html += sortable(tensor.bytes, count_text(tensor.bytes));
    html += sortable(share, percent_text(share));
    html += fmt::format("<td class=\"why\">{}</td></tr>\n",
                        relabelled ? "the mode sends everything" : escape(tensor.why));
  }
  return html + "</tbody></table></div>\n";
}

/// How many tensors of a mode are sparse, and how much of the model they hold.
std::string tensor_words(const Mode& mode) {
  if (train::sends_all(mode.name)) {
    return fmt::format("all {} tensors are sent whole", mode.tensors.size());
  }
  double elements = 0.0;
  double sparse_elements = 0.0;
  std::size_t sparse = 0;
  for (const train::TensorLine& tensor : mode.tensors) {
    if (!std::isfinite(tensor.elements)) continue;
    elements += tensor.elements;
    if (!is_sparse(mode, tensor)) continue;
    ++sparse;
    sparse_elements += tensor.elements;
  }
  const double share = elements > 0.0 ? 100.0 * sparse_elements / elements : 0.0;
  return fmt::format("{} of {} tensors sparse, {:.1f}&nbsp;% of the parameters", sparse,
                     mode.tensors.size(), share);
}

std::string settings(const Run& run) {
  std::string html = "<dl class=\"settings\">\n";
  for (const auto& [key, value] : run.config.items()) {
    html += fmt::format("<div><dt>{}</dt><dd>{}</dd></div>\n", escape(key),
                        value.is_null() ? "–" : escape(value_text(value)));
  }
  return html + "</dl>\n";
}

}  // namespace

std::string tensors_section(std::span<const Run> runs) {
  std::string tables;
  const auto names = run_names(runs);
  std::size_t series = 0;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    for (const Mode& mode : runs[i].modes) {
      const std::size_t number = series++;
      if (mode.tensors.empty()) continue;
      // One is open: the first that is about compression.
      const bool open =
          !train::sends_all(mode.name) && tables.find("<details open") == std::string::npos;
      const std::string label = runs.size() > 1 ? names[i] + " · " + mode.name : mode.name;
      tables += fmt::format("<details{}><summary>{}{} <span>{}</span></summary>\n{}</details>\n",
                            open ? " open" : "", swatch(number), escape(label), tensor_words(mode),
                            tensor_table(mode));
    }
  }
  if (tables.empty()) return {};
  return "<section aria-labelledby=\"tensors\">\n<h2 id=\"tensors\">Tensors</h2>\n"
         "<p class=\"hint\">What a worker sends of each at the final sparsity: k entries of a "
         "sparse "
         "tensor, all of a dense one. Headings sort.</p>\n" +
         tables + "</section>\n";
}

std::string configuration_section(std::span<const Run> runs) {
  std::string html;
  if (runs.size() > 1) {
    const auto rows = configuration_differences(runs);
    if (rows.size() == 1) {
      html += "<p>All runs have the same settings.</p>\n";
    } else {
      html +=
          "<p class=\"hint\">Settings in which the runs differ:</p>\n"
          "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Differing settings\">"
          "<table class=\"differences\">\n<thead><tr>";
      for (const auto& cell : rows[0]) html += "<th scope=\"col\">" + escape(cell) + "</th>";
      html += "</tr></thead>\n<tbody>\n";
      for (std::size_t r = 1; r < rows.size(); ++r) {
        html += "<tr><th scope=\"row\" class=\"code\">" + escape(rows[r][0]) + "</th>";
        for (std::size_t c = 1; c < rows[r].size(); ++c) {
          html += "<td class=\"code\">" + cell_text(rows[r][c]) + "</td>";
        }
        html += "</tr>\n";
      }
      html += "</tbody></table></div>\n";
    }
  }
  const auto names = run_names(runs);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (!runs[i].config.is_object() || runs[i].config.empty()) continue;
    html += fmt::format("<details{}><summary>{} <span>{} settings</span></summary>\n{}</details>\n",
                        runs.size() == 1 ? " open" : "", escape(names[i]), runs[i].config.size(),
                        settings(runs[i]));
  }
  if (html.empty()) return {};
  return "<section aria-labelledby=\"configuration\">\n<h2 "
         "id=\"configuration\">Configuration</h2>\n" +
         html + "</section>\n";
}

}  // namespace dgc::report
