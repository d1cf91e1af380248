#include "checkpoint/names.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace dgc::checkpoint {
namespace {

constexpr std::string_view kStepPrefix = "step-";
constexpr std::string_view kRankPrefix = "rank-";
constexpr std::string_view kRankEnding = ".state";
constexpr std::string_view kProbePrefix = ".dgc-probe-";
constexpr std::size_t kLongestName = 100;

std::string_view ending_of(Stage stage) {
  switch (stage) {
    case Stage::whole:
      return "";
    case Stage::replaced:
      return ".old";
    case Stage::partial:
      return ".tmp";
    case Stage::gone:
      return ".gone";
  }
  return "";
}

template <typename T>
std::optional<T> number_of(std::string_view digits, int base = 10) {
  T value{};
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return value;
}

/// What is between `prefix` and `ending`.
std::optional<std::string_view> middle_of(std::string_view name, std::string_view prefix,
                                          std::string_view ending) {
  if (name.size() < prefix.size() + ending.size() || !name.starts_with(prefix) ||
      !name.ends_with(ending)) {
    return std::nullopt;
  }
  return name.substr(prefix.size(), name.size() - prefix.size() - ending.size());
}

}  // namespace

std::string step_name(std::uint64_t step, Stage stage) {
  return fmt::format("{}{:012}{}", kStepPrefix, step, ending_of(stage));
}

std::optional<StepName> parse_step_name(std::string_view name) {
  for (const Stage stage : {Stage::whole, Stage::replaced, Stage::partial, Stage::gone}) {
    const auto digits = middle_of(name, kStepPrefix, ending_of(stage));
    const auto step = digits ? number_of<std::uint64_t>(*digits) : std::nullopt;
    // Written again and compared: signs, spaces and other widths are not ours.
    if (step && step_name(*step, stage) == name) return StepName{*step, stage};
  }
  return std::nullopt;
}

std::string rank_file_name(int rank) {
  return fmt::format("{}{:05}{}", kRankPrefix, rank, kRankEnding);
}

std::optional<int> parse_rank_file_name(std::string_view name) {
  const auto digits = middle_of(name, kRankPrefix, kRankEnding);
  const auto rank = digits ? number_of<int>(*digits) : std::nullopt;
  return rank && rank_file_name(*rank) == name ? rank : std::nullopt;
}

std::string probe_name(std::uint64_t nonce, int rank) {
  return fmt::format("{}{:016x}-{:05}", kProbePrefix, nonce, rank);
}

bool is_probe_name(std::string_view name) {
  const auto rest = middle_of(name, kProbePrefix, "");
  if (!rest || rest->size() < 18 || (*rest)[16] != '-') return false;
  const auto nonce = number_of<std::uint64_t>(rest->substr(0, 16), 16);
  const auto rank = number_of<int>(rest->substr(17));
  return nonce && rank && probe_name(*nonce, *rank) == name;
}

std::string problem_of_shared_name(std::string_view name) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  };
  if (name.empty() || name.size() > kLongestName) return "is empty or longer than 100 bytes";
  if (!std::all_of(name.begin(), name.end(), plain) || name.front() == '.') {
    return "has other characters than letters, digits, '.', '_' and '-', or begins with '.'";
  }
  // Files get ".tmp" and a number while they are written.
  if (name == kManifestName || name.starts_with(kRankPrefix) ||
      name.find(".tmp") != std::string_view::npos) {
    return "is a name that checkpoints need themselves";
  }
  return "";
}

}  // namespace dgc::checkpoint
