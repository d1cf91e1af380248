#include "train/run_folder.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <nlohmann/json.hpp>
#include <span>
#include <system_error>
#include <thread>

#include "base/file.h"
#include "dgc/error.h"

namespace dgc::train {
namespace {

using nlohmann::ordered_json;

[[noreturn]] void fail(const std::filesystem::path& path, const std::string& problem,
                       const std::string& hint = {}) {
  throw Error(ErrorCode::io, "train", path.string(), problem, hint);
}

}  // namespace

std::filesystem::path new_run_folder(const std::string& recipe) {
  const std::time_t now = std::time(nullptr);
  return std::filesystem::path("runs") /
         fmt::format("{}-{:%Y%m%d-%H%M%S}", recipe, fmt::localtime(now));
}

void begin_run(const std::filesystem::path& folder) {
  // One that failed before its first step is no loss.
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (!std::filesystem::exists(entry.path() / kMetricsFile)) continue;
    fail(folder, "has a run already",
         fmt::format("continue it with --resume {}, or choose another --out", folder.string()));
  }
  std::filesystem::create_directories(folder, error);
  if (error) fail(folder, "cannot be made: " + error.message(), "choose another --out");
  try {
    const std::filesystem::path probe = folder / ".writable";
    write_json(probe, ordered_json::object());
    std::filesystem::remove(probe);
  } catch (const std::exception& cause) {
    fail(folder, fmt::format("cannot be written to: {}", cause.what()), "choose another --out");
  }
}

RunLock::RunLock(const std::filesystem::path& folder, const char* operation, const char* problem,
                 const char* hint)
    : file_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  // A run that was killed a moment ago may still be on its way out.
  constexpr int kTries = 50;
  for (int i = 0; i < kTries && file_ >= 0; ++i) {
    if (::flock(file_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  if (file_ < 0) return;
  ::close(file_);
  throw Error(ErrorCode::io, operation, folder.string(), problem, hint);
}

RunLock::~RunLock() {
  if (file_ >= 0) ::close(file_);
}

void write_json(const std::filesystem::path& file, const ordered_json& json) {
  const std::string text = json.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
  AtomicFile out(file);
  out.write(std::as_bytes(std::span(text)));
  out.commit();
}

std::optional<ordered_json> read_json(const std::filesystem::path& path) {
  if (!std::filesystem::exists(path)) return {};
  const MappedFile file(path);
  const auto* const text = reinterpret_cast<const char*>(file.contents().data());
  const std::size_t size = file.contents().size();
  const char* const kOperation = "read run";
  try {
    return ordered_json::parse(text, text + size);
  } catch (const ordered_json::parse_error& error) {
    if (error.byte > size) {
      throw Error(ErrorCode::truncated, kOperation, path.string(), "ends early",
                  "if you remove it, `dgc report` shows what else there is");
    }
    throw Error(ErrorCode::bad_state, kOperation, path.string(),
                fmt::format("is not JSON at byte {}", error.byte), "was it changed by hand?");
  } catch (const ordered_json::exception& error) {  // a number that no double holds
    throw Error(ErrorCode::bad_state, kOperation, path.string(), error.what());
  }
}

void keep_vocabulary(const std::filesystem::path& folder, const std::string& text) {
  if (text.empty()) return;
  const std::filesystem::path path = folder / kVocabularyFile;
  if (std::filesystem::exists(path)) {
    const MappedFile file(path);
    const auto known = file.contents();
    const auto now = std::as_bytes(std::span(text));
    if (std::equal(known.begin(), known.end(), now.begin(), now.end())) return;
    throw Error(ErrorCode::state_mismatch, "train", path.string(),
                "the text gives other tokens than those of this run",
                "continue with the text that the run began with");
  }
  AtomicFile file(path);
  file.write(std::as_bytes(std::span(text)));
  file.commit();
}

std::string valid_utf8(std::string_view text) {
  const auto quoted =
      nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return nlohmann::json::parse(quoted).get<std::string>();
}

}  // namespace dgc::train
