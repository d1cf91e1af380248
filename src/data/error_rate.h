// Word and character error rates.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

namespace dgc::data {

/// Add up over the utterances, then take the rate: that is how error rates are reported.
struct ErrorCount {
  std::int64_t errors = 0;  ///< insertions, deletions and substitutions
  std::int64_t length = 0;  ///< of the reference

  ErrorCount& operator+=(const ErrorCount& other) {
    errors += other.errors;
    length += other.length;
    return *this;
  }
  /// Above 1 where the hypothesis has many insertions.
  double rate() const {
    return static_cast<double>(errors) / static_cast<double>(std::max<std::int64_t>(length, 1));
  }
};

/// Words are what is between spaces.
ErrorCount word_errors(std::string_view reference, std::string_view hypothesis);

/// Spaces count, as characters; bytes, as the alphabet is ASCII.
ErrorCount character_errors(std::string_view reference, std::string_view hypothesis);

}  // namespace dgc::data
