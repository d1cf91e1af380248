#include "data/collect.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <utility>

#include "data/alphabet.h"
#include "dgc/error.h"

namespace dgc::data {
namespace {

namespace fs = std::filesystem;
constexpr const char* kOperation = "read speech";

}  // namespace

UtteranceCollector::UtteranceCollector(fs::path source, const SpeechOptions& options)
    : source_(std::move(source)), options_(options) {
  if (!(options.max_seconds >= 0)) {
    throw Error(ErrorCode::invalid_argument, kOperation, "max_seconds",
                fmt::format("{} is given", options.max_seconds), "0 or more, 0 for no limit");
  }
}

void UtteranceCollector::add(std::vector<Utterance>& list, const UtteranceEntry& entry) {
  const SpokenText spoken = spoken_text(entry.transcript);
  if (!spoken.unknown.empty()) {
    unusable(entry.file, fmt::format("how \"{}\" is spoken is not known", spoken.unknown),
             "spell it out in the transcript");
  } else if (spoken.text.empty()) {
    unusable(entry.file, "the transcript is empty");
  } else if (const std::optional<AudioInfo> info = header(entry.file)) {
    keep(list, entry, *info, spoken.text);
  }
}

void UtteranceCollector::skip(const fs::path& file, std::string_view why) {
  set_.skipped.push_back(fmt::format("{}: {}", file.string(), why));
}

SpeechSet UtteranceCollector::finish(bool has_valid, bool has_test) {
  const std::size_t share = std::max<std::size_t>(set_.train.size() / 20, 1);
  if (!has_test) set_aside(share, set_.test);
  if (!has_valid) set_aside(share, set_.valid);
  const std::array<std::pair<const char*, bool>, 3> parts = {{{"test", set_.test.empty()},
                                                              {"validate", set_.valid.empty()},
                                                              {"train", set_.train.empty()}}};
  for (const auto& [purpose, is_empty] : parts) {
    if (!is_empty) continue;
    std::string why;
    if (set_.too_long > 0) why = fmt::format("{} are longer than the limit", set_.too_long);
    if (!set_.skipped.empty()) {
      why += fmt::format("{}{} cannot be used, the first: {}", why.empty() ? "" : "; ",
                         set_.skipped.size(), set_.skipped.front());
    }
    throw Error(ErrorCode::io, kOperation, source_.string(),
                fmt::format("there are no usable utterances to {} with", purpose), why);
  }
  return std::move(set_);
}

void UtteranceCollector::unusable(const fs::path& file, const std::string& why, const char* hint) {
  if (options_.strict) throw Error(ErrorCode::io, kOperation, file.string(), why, hint);
  skip(file, why);
}

std::optional<AudioInfo> UtteranceCollector::header(const fs::path& file) {
  try {
    return audio_info(file);
  } catch (const Error& error) {
    if (options_.strict) throw;
    skip(file, error.problem());
    return std::nullopt;
  }
}

void UtteranceCollector::keep(std::vector<Utterance>& list, const UtteranceEntry& entry,
                              const AudioInfo& info, const std::string& text) {
  const double seconds = info.seconds();
  // Tables round to hundredths or so.
  if (entry.seconds && std::abs(*entry.seconds - seconds) > std::max(0.05, 0.02 * seconds)) {
    unusable(entry.file, fmt::format("the file has {:.3f} s, the table says {:.3f} s", seconds,
                                     *entry.seconds));
    return;
  }
  if (set_.rate == 0) {
    set_.rate = info.rate;
    first_file_ = entry.file;
  } else if (info.rate != set_.rate) {
    throw Error(ErrorCode::invalid_argument, kOperation, entry.file.string(),
                fmt::format("{} Hz, but {} has {} Hz", info.rate, first_file_.string(), set_.rate),
                "convert all files to one sample rate");
  }
  if (&list == &set_.train && options_.max_seconds > 0 && seconds > options_.max_seconds) {
    ++set_.too_long;
    return;
  }
  list.push_back({entry.file, seconds, text, entry.part});
}

void UtteranceCollector::set_aside(std::size_t share, std::vector<Utterance>& list) {
  const auto begin =
      set_.train.end() - static_cast<std::ptrdiff_t>(std::min(share, set_.train.size()));
  list.assign(std::make_move_iterator(begin), std::make_move_iterator(set_.train.end()));
  set_.train.erase(begin, set_.train.end());
}

}  // namespace dgc::data
