// Error rates of speech recognition: the least number of insertions, deletions and substitutions
// that turn the hypothesis into the reference (Levenshtein), over the length of the reference.
//
//   d[i][j] = min(d[i-1][j-1] + (reference[i] != hypothesis[j]), d[i-1][j] + 1, d[i][j-1] + 1)
//
// of which one row at a time is kept.
#include "data/error_rate.h"

#include <numeric>
#include <vector>

namespace dgc::data {
namespace {

std::vector<std::string_view> words_of(std::string_view text) {
  std::vector<std::string_view> words;
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(' '));
    if (!word.empty()) words.push_back(word);
    text.remove_prefix(std::min(text.size(), word.size() + 1));
  }
  return words;
}

/// Levenshtein's distance, one row of the table at a time.
template <typename Sequence>
ErrorCount errors(const Sequence& reference, const Sequence& hypothesis) {
  std::vector<std::int64_t> row(hypothesis.size() + 1);
  std::iota(row.begin(), row.end(), std::int64_t{0});
  for (std::size_t i = 0; i < reference.size(); ++i) {
    std::int64_t diagonal = row[0]++;
    for (std::size_t j = 0; j < hypothesis.size(); ++j) {
      const std::int64_t substituted = diagonal + (reference[i] == hypothesis[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({substituted, diagonal + 1, row[j] + 1});
    }
  }
  return {row.back(), static_cast<std::int64_t>(reference.size())};
}

}  // namespace

ErrorCount word_errors(std::string_view reference, std::string_view hypothesis) {
  return errors(words_of(reference), words_of(hypothesis));
}

ErrorCount character_errors(std::string_view reference, std::string_view hypothesis) {
  return errors(reference, hypothesis);
}

}  // namespace dgc::data
