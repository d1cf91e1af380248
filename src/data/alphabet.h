// What a speech model writes: characters, and CTC's blank.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace dgc::data {

/// Deep Speech 2's 29 labels for English: 0 is CTC's blank, shown as '_', then the apostrophe, A to
/// Z, and the space.
class Alphabet {
 public:
  static constexpr std::string_view kCharacters = "_'ABCDEFGHIJKLMNOPQRSTUVWXYZ ";
  static constexpr std::int32_t kBlank = 0;

  static constexpr std::int64_t size() { return std::int64_t{kCharacters.size()}; }

  /// Throws Error(invalid_argument) for a character without a label; spoken_text() leaves none.
  static std::vector<std::int32_t> encode(std::string_view text);

  /// Throws Error(invalid_argument) for a label out of range. A blank reads '_'.
  static std::string decode(std::span<const std::int32_t> labels);
};

/// A transcript as it is spoken, in the characters of the alphabet.
struct SpokenText {
  std::string text;     ///< words with one space between them; may be empty
  std::string unknown;  ///< the first word of which it is not known how it is spoken; usually empty
};

/// Upper-cases; punctuation, also Unicode's, goes, and hyphens and dashes separate words;
/// apostrophes of a word stay ('’' is one), except a pair around it; a digit alone is spelled ("7":
/// SEVEN). Unknown: other numbers, symbols such as $, letters outside A to Z, dots inside a word
/// ("www.example.org").
SpokenText spoken_text(std::string_view transcript);

/// The labels that CTC reads from the best label of each frame: repeats merged, then blanks
/// dropped.
std::vector<std::int32_t> greedy_ctc(std::span<const std::int32_t> best_labels_per_frame);

/// Frames that CTC needs at least for these labels: one each, and a blank between equals.
std::int64_t ctc_frames_needed(std::span<const std::int32_t> labels);

}  // namespace dgc::data
