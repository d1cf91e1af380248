// The parts of the page, each as HTML. They are whole without scripts; curves are drawn by page.js.
#pragma once

#include <span>
#include <string>

#include "report/read_run.h"

namespace dgc::report {

/// The result in a sentence, what was run, and what is missing.
std::string header_section(std::span<const Run> runs);
/// The main figures, and the modes side by side.
std::string results_section(std::span<const Run> runs);
std::string time_section(std::span<const Run> runs);
std::string tensors_section(std::span<const Run> runs);
std::string configuration_section(std::span<const Run> runs);
std::string terms_section();

/// A short line in the colour and dash pattern of a series.
std::string swatch(std::size_t series);
/// A cell's text as HTML; nothing known is an en dash, a negative number has a true minus.
std::string cell_text(const std::string& cell);

}  // namespace dgc::report
