// Transcripts as Deep Speech 2 spells them: upper case letters, apostrophe and space. Marks between
// words become spaces, single digits become words; what else has digits is not known to be spoken
// one way, and is refused rather than guessed. Label 0 is CTC's blank.
#include "data/alphabet.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "data/lines.h"
#include "dgc/error.h"

namespace dgc::data {
namespace {

constexpr std::array<std::string_view, 10> kDigits = {"ZERO", "ONE", "TWO",   "THREE", "FOUR",
                                                      "FIVE", "SIX", "SEVEN", "EIGHT", "NINE"};

bool is_letter(char c) { return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z'); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// A code point of a transcript, made simpler: a letter (upper case), a digit, an apostrophe, a
/// space for all that separates words, or 0 for what cannot be read out.
char simplified(std::string_view point) {
  const char c = point[0];
  if (point.size() == 1) {
    if (c >= 'a' && c <= 'z') return static_cast<char>(c - 'a' + 'A');
    if (is_letter(c) || is_digit(c) || c == '\'') return c;
    if (is_space(c) || std::string_view(",.;:!?\"()[]{}-").find(c) != std::string_view::npos) {
      return ' ';
    }
    return 0;
  }
  if (point == "’" || point == "‘") return '\'';
  // U+2000 to U+205F: Unicode's spaces, dashes and quotation marks.
  if (point.size() == 3 && (point[1] == '\x80' || point[1] == '\x81') && c == '\xe2') return ' ';
  for (const std::string_view mark : {"\u00a0", "«", "»", "¿", "¡"}) {
    if (point == mark) return ' ';
  }
  return 0;
}

/// A word between separators as it is spoken; empty if that is not known.
std::string spoken_word(std::string word) {
  if (word.size() == 1 && is_digit(word[0])) {
    return std::string(kDigits[static_cast<std::size_t>(word[0] - '0')]);
  }
  if (word.size() > 2 && word.front() == '\'' && word.back() == '\'') {  // quoted
    word = word.substr(1, word.size() - 2);
  }
  return std::any_of(word.begin(), word.end(), is_digit) ? std::string() : word;
}

}  // namespace

std::vector<std::int32_t> Alphabet::encode(std::string_view text) {
  std::vector<std::int32_t> labels;
  labels.reserve(text.size());
  for (const char c : text) {
    const std::size_t label = kCharacters.find(c, 1);
    if (label == std::string_view::npos) {
      throw Error(ErrorCode::invalid_argument, "encode transcript", std::string(text),
                  fmt::format("'{}' has no label", c));
    }
    labels.push_back(static_cast<std::int32_t>(label));
  }
  return labels;
}

std::string Alphabet::decode(std::span<const std::int32_t> labels) {
  std::string text;
  text.reserve(labels.size());
  for (const std::int32_t label : labels) {
    if (label < 0 || label >= size()) {
      throw Error(ErrorCode::invalid_argument, "decode transcript", fmt::format("label {}", label),
                  fmt::format("labels are 0 to {}", size() - 1));
    }
    text += kCharacters[static_cast<std::size_t>(label)];
  }
  return text;
}

SpokenText spoken_text(std::string_view transcript) {
  SpokenText spoken;
  std::string word;
  // The word as it is written, between white space.
  const auto written = [&](std::size_t at) {
    std::size_t begin = at, end = at;
    while (begin > 0 && !is_space(transcript[begin - 1])) --begin;
    while (end < transcript.size() && !is_space(transcript[end])) ++end;
    return std::string(transcript.substr(begin, end - begin));
  };
  const auto unknown_at = [&](std::size_t at) {
    if (spoken.unknown.empty()) spoken.unknown = written(at);
  };
  const auto finish_word = [&](std::size_t at) {
    if (word.find_first_not_of('\'') != std::string::npos) {
      const std::string said = spoken_word(word);
      if (said.empty()) unknown_at(at - 1);
      if (!spoken.text.empty()) spoken.text += ' ';
      spoken.text += said;
    }
    word.clear();
  };
  const auto joins = [&](std::size_t at) {
    return is_letter(transcript[at]) || is_digit(transcript[at]);
  };
  for (std::size_t at = 0; at < transcript.size();) {
    const std::size_t length = std::max<std::size_t>(utf8_length(transcript.substr(at)), 1);
    const char c = simplified(transcript.substr(at, length));
    const bool dot_inside = transcript[at] == '.' && at > 0 && at + 1 < transcript.size() &&
                            joins(at - 1) && joins(at + 1);
    if (c == 0 || dot_inside) unknown_at(at);
    if (c == ' ') {
      finish_word(at);
    } else if (c != 0) {
      word += c;
    }
    at += length;
  }
  finish_word(transcript.size());
  return spoken;
}

std::vector<std::int32_t> greedy_ctc(std::span<const std::int32_t> best_labels_per_frame) {
  std::vector<std::int32_t> labels;
  std::int32_t last = Alphabet::kBlank;
  for (const std::int32_t label : best_labels_per_frame) {
    if (label != last && label != Alphabet::kBlank) labels.push_back(label);
    last = label;
  }
  return labels;
}

std::int64_t ctc_frames_needed(std::span<const std::int32_t> labels) {
  auto frames = static_cast<std::int64_t>(labels.size());
  for (std::size_t i = 1; i < labels.size(); ++i) frames += labels[i] == labels[i - 1] ? 1 : 0;
  return frames;
}

}  // namespace dgc::data
