#include "base/quantity.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <cmath>
#include <span>
#include <utility>
#include <vector>

#include "base/nearest.h"
#include "dgc/error.h"

namespace dgc {
namespace {

struct Unit {
  std::string_view name;
  double factor;
};

constexpr Unit kBandwidths[] = {
    {"kbps", 1e3},   {"Mbps", 1e6},   {"Gbps", 1e9},    {"Tbps", 1e12}, {"kbit/s", 1e3},
    {"Mbit/s", 1e6}, {"Gbit/s", 1e9}, {"Tbit/s", 1e12}, {"kbit", 1e3},  {"Mbit", 1e6},
    {"Gbit", 1e9},   {"B/s", 8.0},    {"kB/s", 8e3},    {"MB/s", 8e6},  {"GB/s", 8e9},
};
constexpr Unit kDurations[] = {{"s", 1.0}, {"ms", 1e-3}, {"us", 1e-6}, {"µs", 1e-6}, {"ns", 1e-9}};
constexpr Unit kBytes[] = {{"B", 1.0},   {"kB", 1e3},     {"MB", 1e6},     {"GB", 1e9},
                           {"TB", 1e12}, {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}};

[[noreturn]] void refuse(std::string_view option, std::string_view text, const std::string& problem,
                         const std::string& hint) {
  throw Error(ErrorCode::invalid_argument, "options", fmt::format("{} '{}'", option, text), problem,
              hint);
}

std::string_view trimmed(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  return text;
}

double parse(std::string_view option, std::string_view text, std::span<const Unit> units,
             std::string_view usual, bool zero) {
  const std::string_view all = trimmed(text);
  double number = 0.0;
  const auto [end, error] = std::from_chars(all.data(), all.data() + all.size(), number);
  if (error != std::errc{} || !std::isfinite(number)) {
    refuse(option, text, "does not begin with a number", fmt::format("write it as 1{}", usual));
  }
  const std::string_view unit = trimmed(all.substr(static_cast<std::size_t>(end - all.data())));
  if (number < 0.0 || (number == 0.0 && !zero)) {
    refuse(option, text, number < 0.0 ? "is negative" : "is zero",
           fmt::format("must be more than 0, such as {}{}", number < 0.0 ? -number : 1.0,
                       unit.empty() ? usual : unit));
  }
  std::vector<std::string> names;
  for (const Unit& known : units) {
    if (known.name == unit) return number * known.factor;
    names.emplace_back(known.name);
  }
  if (unit.empty() && number == 0.0) return 0.0;
  if (unit.empty()) refuse(option, text, "has no unit", fmt::format("{}{}?", number, usual));
  const std::string meant = nearest(unit, names);
  refuse(option, text, fmt::format("there is no unit '{}'", unit),
         fmt::format("{}known units: {}",
                     meant.empty() ? "" : fmt::format("did you mean {}{}? ", number, meant),
                     fmt::join(names, ", ")));
}

}  // namespace

double parse_bandwidth(std::string_view option, std::string_view text) {
  return parse(option, text, kBandwidths, "Gbps", false);
}

double parse_duration(std::string_view option, std::string_view text, bool zero) {
  return parse(option, text, kDurations, "ms", zero);
}

double parse_bytes(std::string_view option, std::string_view text) {
  return parse(option, text, kBytes, "MB", false);
}

std::string bandwidth_text(double bits) {
  if (bits < 1e6) return fmt::format("{:g} kbps", bits / 1e3);
  if (bits < 1e9) return fmt::format("{:g} Mbps", bits / 1e6);
  return fmt::format("{:g} Gbps", bits / 1e9);
}

std::string duration_text(double seconds) {
  if (seconds < 1e-6) return fmt::format("{:.3g} ns", seconds * 1e9);
  if (seconds < 1e-3) return fmt::format("{:.0f} us", seconds * 1e6);
  if (seconds < 1.0) return fmt::format("{:.3g} ms", seconds * 1e3);
  return fmt::format("{:.3g} s", seconds);
}

}  // namespace dgc
