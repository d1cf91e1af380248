#include "checkpoint/manifest.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <charconv>
#include <nlohmann/json.hpp>
#include <set>

#include "checkpoint/names.h"
#include "dgc/error.h"

namespace dgc::checkpoint {
namespace {

using nlohmann::json;

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
