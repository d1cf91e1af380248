#include "train/metrics_log.h"

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

#include "base/file.h"
#include "dgc/error.h"

namespace dgc::train {
namespace {

using nlohmann::ordered_json;

template <typename Line>
void add(std::vector<Line>& lines, const Line& line) {
  while (!lines.empty() && lines.back().step >= line.step) lines.pop_back();
  lines.push_back(line);
}

[[noreturn]] void fail(const std::filesystem::path& file, const std::string& problem) {
  throw Error(ErrorCode::io, "train", file.string(), problem,
              "is the disk full? The last checkpoint is good");
}

}  // namespace

MetricsLog::MetricsLog(const std::filesystem::path& file, std::uint64_t step) : file_(file) {
  std::string kept;
  if (std::ifstream before(file, std::ios::binary); before) {
    for (std::string line; std::getline(before, line);) {
      const auto json = ordered_json::parse(line, nullptr, /*allow_exceptions=*/false);
      // The last line may have been cut off.
      if (!json.is_object() || json.value("step", ~std::uint64_t{0}) > step) continue;
      kept += line + "\n";
    }
    if (before.bad()) fail(file, "cannot be read");
  }
  AtomicFile out(file);
  out.write(std::as_bytes(std::span(kept)));
  out.commit();
  stream_.open(file, std::ios::binary | std::ios::app);
  if (!stream_) fail(file, "cannot be opened");
}

void MetricsLog::write(const ordered_json& line) {
  stream_ << line.dump(-1, ' ', false, ordered_json::error_handler_t::replace) << std::endl;
  if (!stream_) fail(file_, "cannot be written");
}

void MetricsLog::write(const StepLine& line) { write(to_json(line)); }
void MetricsLog::write(const EvaluationLine& line) { write(to_json(line)); }

Metrics read_metrics(const std::filesystem::path& path) {
  const MappedFile file(path);
  std::string_view text(reinterpret_cast<const char*>(file.contents().data()),
                        file.contents().size());
  Metrics metrics;
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::size_t end = text.find('\n');
    const bool last = end == std::string_view::npos;
    const std::string_view content = text.substr(0, end);
    text.remove_prefix(last ? text.size() : end + 1);
    if (content.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const auto object = ordered_json::parse(content, nullptr, /*allow_exceptions=*/false);
    if (!object.is_object()) {
      if (last) {
        metrics.cut_off = true;
      } else if (metrics.bad_lines++ == 0) {
        metrics.first_bad = number;
      }
      continue;
    }
    if (const auto step = step_line(object)) add(metrics.steps, *step);
    if (const auto evaluation = evaluation_line(object)) add(metrics.evaluations, *evaluation);
  }
  return metrics;
}

}  // namespace dgc::train
