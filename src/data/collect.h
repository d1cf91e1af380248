// The way from what a set of speech says it has to the utterances that can be used.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/audio.h"
#include "data/speech.h"

namespace dgc::data {

/// An utterance as its set describes it.
struct UtteranceEntry {
  std::filesystem::path file;
  std::string_view transcript;
  std::optional<double> seconds = {};  ///< where the set states them
  std::string part = {};
};

/// Looks at each utterance, and keeps those that can be used.
class UtteranceCollector {
 public:
  /// `source` names the set in messages. Throws Error(invalid_argument) for bad options.
  UtteranceCollector(std::filesystem::path source, const SpeechOptions& options);

  /// Adds to one of train(), valid() and test(), or lists as skipped. Throws Error: io for an
  /// utterance that cannot be used if strict, invalid_argument for another sample rate.
  void add(std::vector<Utterance>& list, const UtteranceEntry& entry);

  void skip(const std::filesystem::path& file, std::string_view why);

  std::vector<Utterance>& train() { return set_.train; }
  std::vector<Utterance>& valid() { return set_.valid; }
  std::vector<Utterance>& test() { return set_.test; }

  /// The set; parts that it does not have of its own are taken from the end of train. Throws
  /// Error(io) if one of the three is empty.
  SpeechSet finish(bool has_valid, bool has_test);

 private:
  void unusable(const std::filesystem::path& file, const std::string& why, const char* hint = "");
  std::optional<AudioInfo> header(const std::filesystem::path& file);
  void keep(std::vector<Utterance>& list, const UtteranceEntry& entry, const AudioInfo& info,
            const std::string& text);
  void set_aside(std::size_t share, std::vector<Utterance>& list);

  std::filesystem::path source_;
  SpeechOptions options_;
  SpeechSet set_;
  std::filesystem::path first_file_;  ///< the one that set the sample rate
};

}  // namespace dgc::data
