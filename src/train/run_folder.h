// The files of a run: RUN/config.json, summary.json, report.html, vocabulary.json of transformers,
// and for each mode RUN/MODE/metrics.jsonl, tensors.json, result.json and checkpoints/.
// docs/train.md describes them.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace dgc::train {

inline constexpr const char* kConfigFile = "config.json";
inline constexpr const char* kSummaryFile = "summary.json";
inline constexpr const char* kReportFile = "report.html";
inline constexpr const char* kVocabularyFile = "vocabulary.json";
inline constexpr const char* kMetricsFile = "metrics.jsonl";
inline constexpr const char* kTensorsFile = "tensors.json";
inline constexpr const char* kResultFile = "result.json";
inline constexpr const char* kCheckpoints = "checkpoints";

/// runs/RECIPE-20261116-051500, by the clock.
std::filesystem::path new_run_folder(const std::string& recipe);

/// Makes a folder for a new run and tries to write there. Throws Error(io): it has a run already,
/// or cannot be written to.
void begin_run(const std::filesystem::path& folder);

/// Keeps other processes from writing the same run, while it lives. Needs the folder.
class RunLock {
 public:
  /// Throws Error(io) with these words when another process has it. File systems that cannot lock
  /// do not.
  explicit RunLock(const std::filesystem::path& folder, const char* operation = "train",
                   const char* problem = "another process is writing this run",
                   const char* hint = "wait for it, or choose another --out");
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  int file_;
};

/// Under a temporary name, flushed, renamed. Throws Error(io).
void write_json(const std::filesystem::path& file, const nlohmann::ordered_json& json);
/// Nothing if there is no such file. Throws Error: io if it cannot be read, truncated if it ends
/// early, bad_state if it is not JSON.
std::optional<nlohmann::ordered_json> read_json(const std::filesystem::path& file);

/// What the tokens of a run's text stand for: the model is of no use without it. Nothing where
/// `text` is empty. Throws Error(state_mismatch) where the folder has another one: the text has
/// changed since the run began.
void keep_vocabulary(const std::filesystem::path& folder, const std::string& text);

/// `text` as JSON may hold it: bytes that are no UTF-8 (in a file's name) become replacement
/// characters.
std::string valid_utf8(std::string_view text);

}  // namespace dgc::train
