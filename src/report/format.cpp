#include "report/format.h"

#include <fmt/format.h>

#include <cmath>

#include "base/units.h"
#include "train/run_folder.h"

namespace dgc::report {

std::string bytes_text(double bytes) {
  return std::isfinite(bytes) ? dgc::bytes_text(bytes) : std::string(kNothing);
}

std::string seconds_text(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0.0) return std::string(kNothing);
  if (seconds < 10.0) return fmt::format("{:.2f} s", seconds);
  // Minutes only where they are needed: runs of a demo are compared in tenths of seconds.
  if (seconds < 599.95) return fmt::format("{:.1f} s", seconds);
  const auto whole = std::llround(seconds);
  if (whole < 7200) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{} h {:02} min", whole / 3600, whole / 60 % 60);
}

std::string count_text(double count) {
  if (!std::isfinite(count) || count < 0.0 || count > 1e18) return std::string(kNothing);
  return grouped(static_cast<std::uint64_t>(std::llround(count)));
}

std::string ratio_text(double ratio) {
  if (!std::isfinite(ratio) || ratio < 0.0) return std::string(kNothing);
  if (ratio >= 99.95) return count_text(ratio);
  return fmt::format("{:.{}f}", ratio, ratio >= 9.995 ? 1 : 2);
}

std::string percent_text(double share) {
  if (!std::isfinite(share)) return std::string(kNothing);
  return fmt::format("{:.1f} %", 100.0 * share);
}

std::string metric_text(double metric) {
  if (!std::isfinite(metric)) return std::string(kNothing);
  return fmt::format("{:.{}f}", metric, std::abs(metric) < 1.0 ? 4 : 2);
}

std::string epochs_text(double epochs) {
  if (!std::isfinite(epochs)) return std::string(kNothing);
  std::string text = fmt::format("{:.2f}", epochs);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.ends_with('.')) text.pop_back();
  return text;
}

std::string escape(std::string_view text) {
  std::string escaped;
  for (const char c : train::valid_utf8(text)) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      case '\'':
        escaped += "&#39;";
        break;
      default:
        escaped += c;
    }
  }
  return escaped;
}

}  // namespace dgc::report
