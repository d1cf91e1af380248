// Names are parsed by writing them again and comparing: what we would not write is not ours, and is
// never read or removed. A manifest is believed only when its own checksum fits.
#include "checkpoint/format.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <set>

#include "dgc/error.h"

namespace dgc::checkpoint {
namespace {

using nlohmann::json;

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

// Names.

std::string step_name(std::uint64_t step, Stage stage) {
  return fmt::format("{}{:012}{}", kStepPrefix, step, ending_of(stage));
}

std::optional<StepName> parse_step_name(std::string_view name) {
  for (const Stage stage : {Stage::whole, Stage::replaced, Stage::partial, Stage::gone}) {
    const auto digits = middle_of(name, kStepPrefix, ending_of(stage));
    const auto step = digits ? number_of<std::uint64_t>(*digits) : std::nullopt;
    // Written again and compared, because a sign, a space or another width is not ours.
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

// Files.

FileEntry measure(std::string name, std::span<const std::byte> bytes) {
  return {std::move(name), bytes.size(), XXH64(bytes.data(), bytes.size(), 0)};
}

void check_bytes(std::span<const std::byte> bytes, const FileEntry& entry,
                 const std::string& subject, const std::string& hint) {
  if (bytes.size() != entry.size) {
    throw Error(bytes.size() < entry.size ? ErrorCode::truncated : ErrorCode::trailing_bytes,
                "read checkpoint", subject,
                fmt::format("has {} bytes, its manifest says {}", bytes.size(), entry.size), hint);
  }
  if (XXH64(bytes.data(), bytes.size(), 0) != entry.checksum) {
    throw Error(ErrorCode::checksum_mismatch, "read checkpoint", subject,
                "is damaged: it does not have the checksum in its manifest", hint);
  }
}

// The manifest.

namespace {

constexpr std::uint64_t kFormat = 1;
constexpr std::uint64_t kMostWorkers = 1'000'000;

std::string hex(std::uint64_t value) { return fmt::format("{:016x}", value); }

/// Of the shortest text with keys in order, so that white space does not matter.
std::uint64_t hash_of(const json& value) {
  const std::string text = value.dump();
  return XXH64(text.data(), text.size(), 0);
}

json common_fields(const Manifest& manifest) {
  json files = json::array();
  for (const FileEntry& file : manifest.files) {
    files.push_back({{"name", file.name}, {"size", file.size}, {"xxh64", hex(file.checksum)}});
  }
  return {{"format", kFormat},           {"dgc", manifest.version},
          {"step", manifest.step},       {"state_step", manifest.state_step},
          {"workers", manifest.workers}, {"state_workers", manifest.state_workers},
          {"user", manifest.user},       {"files", std::move(files)}};
}

/// Reads fields of one object; every contradiction is a bad_state.
class Fields {
 public:
  Fields(const json& object, const std::string& subject) : object_(object), subject_(subject) {}

  [[noreturn]] void fail(ErrorCode code, std::string problem) const {
    throw Error(code, "read manifest", subject_, std::move(problem));
  }
  const json& field(const char* name, json::value_t type) const {
    const auto at = object_.is_object() ? object_.find(name) : object_.end();
    if (at == object_.end() || at->type() != type) {
      fail(ErrorCode::bad_state, fmt::format("has no valid field '{}'", name));
    }
    return *at;
  }
  std::uint64_t number(const char* name, std::uint64_t limit = UINT64_MAX) const {
    const auto value = field(name, json::value_t::number_unsigned).get<std::uint64_t>();
    if (value > limit) fail(ErrorCode::bad_state, fmt::format("'{}' is {}", name, value));
    return value;
  }
  std::string text(const char* name) const {
    return field(name, json::value_t::string).get<std::string>();
  }
  std::uint64_t hash(const char* name) const {
    const std::string digits = text(name);
    std::uint64_t value = 0;
    const auto end = digits.data() + digits.size();
    const auto result = std::from_chars(digits.data(), end, value, 16);
    if (result.ec != std::errc() || hex(value) != digits) {
      fail(ErrorCode::bad_state, fmt::format("has no valid field '{}'", name));
    }
    return value;
  }
  const json& list(const char* name) const { return field(name, json::value_t::array); }

 private:
  const json& object_;
  const std::string& subject_;
};

json parse_json(std::span<const std::byte> text, const std::string& subject) {
  const auto* const begin = reinterpret_cast<const char*>(text.data());
  try {
    return json::parse(begin, begin + text.size());
  } catch (const json::parse_error& error) {
    if (error.byte > text.size()) {
      throw Error(ErrorCode::truncated, "read manifest", subject, "ends early");
    }
    throw Error(ErrorCode::bad_state, "read manifest", subject,
                fmt::format("is not JSON at byte {}", error.byte));
  }
}

void check_files(const Manifest& manifest, const Fields& fields) {
  if (manifest.workers < 1 || manifest.files.size() < static_cast<std::size_t>(manifest.workers)) {
    fields.fail(ErrorCode::bad_state, fmt::format("lists {} files of {} workers",
                                                  manifest.files.size(), manifest.workers));
  }
  std::set<std::string> names;
  for (std::size_t i = 0; i < manifest.files.size(); ++i) {
    const std::string& name = manifest.files[i].name;
    const std::size_t shared = manifest.shared_files();
    // Names become paths: nothing but what save() allows.
    const bool valid = i < shared ? problem_of_shared_name(name).empty()
                                  : name == rank_file_name(static_cast<int>(i - shared));
    if (!valid || !names.insert(name).second) {
      fields.fail(ErrorCode::bad_state, fmt::format("lists a file '{}' in place {}", name, i));
    }
  }
}

}  // namespace

std::uint64_t Manifest::id() const { return hash_of(common_fields(*this)); }

std::string Manifest::text() const {
  try {
    json all = common_fields(*this);
    all["ranks_here"] = ranks_here;
    all["checksum"] = hex(hash_of(all));
    return all.dump(2) + "\n";
  } catch (const json::type_error&) {
    throw Error(ErrorCode::invalid_argument, "save checkpoint", "user text", "is not UTF-8");
  }
}

Manifest parse_manifest(std::span<const std::byte> text, const std::string& subject) {
  json all = parse_json(text, subject);
  const Fields fields(all, subject);
  if (const auto format = fields.number("format"); format != kFormat) {
    fields.fail(ErrorCode::bad_version,
                fmt::format("format {}, this library reads {}", format, kFormat));
  }
  const std::uint64_t checksum = fields.hash("checksum");
  all.erase("checksum");
  if (hash_of(all) != checksum) {
    fields.fail(ErrorCode::checksum_mismatch, "is damaged: its checksum does not match");
  }
  Manifest manifest;
  manifest.version = fields.text("dgc");
  manifest.step = fields.number("step");
  manifest.state_step = fields.number("state_step");
  manifest.workers = static_cast<int>(fields.number("workers", kMostWorkers));
  manifest.state_workers = static_cast<std::uint32_t>(fields.number("state_workers", kMostWorkers));
  manifest.user = fields.text("user");
  for (const json& item : fields.list("files")) {
    const Fields file(item, subject);
    manifest.files.push_back({file.text("name"), file.number("size"), file.hash("xxh64")});
  }
  check_files(manifest, fields);
  for (const json& item : fields.list("ranks_here")) {
    if (!item.is_number_unsigned() ||
        item.get<std::uint64_t>() >= static_cast<std::uint64_t>(manifest.workers)) {
      fields.fail(ErrorCode::bad_state, "'ranks_here' names a rank that did not write it");
    }
    manifest.ranks_here.push_back(item.get<int>());
  }
  return manifest;
}

}  // namespace dgc::checkpoint
