// The report as one HTML page that needs nothing else: no network, no library.
#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "report/read_run.h"

namespace dgc::report {

/// The page: results, curves, where the time goes, tensors, configuration, and what it all means.
/// With several runs each mode of each is a series, and the settings in which they differ are
/// shown.
std::string report_page(std::span<const Run> runs);

/// Writes the page, atomically. Throws Error: invalid_argument without runs, io when the file
/// cannot be written.
void write_report(std::span<const Run> runs, const std::filesystem::path& html);

}  // namespace dgc::report
