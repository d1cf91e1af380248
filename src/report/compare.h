// The modes of runs side by side, as a table and in words.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "report/read_run.h"

namespace dgc::report {

/// Names to tell runs apart by: the folders' own, with those above them where they are the same.
std::vector<std::string> run_names(std::span<const Run> runs);

/// The mode that `mode` of runs[run] is compared with: dense of the same run, else the first dense
/// of the others with the same metric. nullptr for dense itself, and when there is none.
const Mode* baseline(std::span<const Run> runs, std::size_t run, const Mode& mode);

/// Heading and a row per mode; with several runs the first column is the run. Cells that are not
/// known are "-".
std::vector<std::vector<std::string>> comparison_rows(std::span<const Run> runs);
std::vector<std::vector<std::string>> comparison_rows(const Run& run);

/// One sentence for each mode but dense, dgc's first, e.g. "dgc sent 533 times smaller messages
/// than dense once warmed up (41.2 times over the whole run), and ended 0.12 points below dense."
/// Of a run that has dense alone, how it ended. Before them, where a link was emulated, what a step
/// took with each mode; of less than an epoch, that alone.
std::vector<std::string> comparison_sentences(const Run& run);
/// The same as one text.
std::string comparison_words(const Run& run);

/// The differing keys of the runs' configurations: heading (key, then the runs), then a row per
/// key. Only the heading when nothing differs.
std::vector<std::vector<std::string>> configuration_differences(std::span<const Run> runs);

/// A value of a configuration as text: strings as they are, others as JSON.
std::string value_text(const nlohmann::json& value);

}  // namespace dgc::report
