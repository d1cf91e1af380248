#include "base/units.h"

#include <fmt/format.h>

namespace dgc {

std::string grouped(std::uint64_t value) {
  const std::string digits = std::to_string(value);
  std::string text;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

std::string bytes_text(double bytes) {
  if (bytes < 1e3) return fmt::format("{:.0f} B", bytes);
  if (bytes < 1e6) return fmt::format("{:.1f} kB", bytes / 1e3);
  if (bytes < 1e9) return fmt::format("{:.2f} MB", bytes / 1e6);
  if (bytes < 1e12) return fmt::format("{:.2f} GB", bytes / 1e9);
  return fmt::format("{:.2f} TB", bytes / 1e12);
}

}  // namespace dgc
