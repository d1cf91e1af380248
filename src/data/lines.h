// Text files by lines, checked to be UTF-8.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "dgc/error.h"

namespace dgc::data {

/// Bytes of the code point that `text` begins with; 0 if that is not UTF-8, or nothing.
inline std::size_t utf8_length(std::string_view text) noexcept {
  const auto byte = [&](std::size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
  };
  const auto tail = [&](std::size_t i) { return (byte(i) & 0xc0u) == 0x80u; };
  const unsigned first = byte(0), second = byte(1);
  if (text.empty()) return 0;
  if (first < 0x80) return 1;
  // The bounds on the second byte exclude overlong forms, surrogates and what is above U+10FFFF.
  if (first >= 0xc2 && first <= 0xdf && tail(1)) return 2;
  if (first >= 0xe0 && first <= 0xef && tail(1) && tail(2) && !(first == 0xe0 && second < 0xa0) &&
      !(first == 0xed && second >= 0xa0)) {
    return 3;
  }
  if (first >= 0xf0 && first <= 0xf4 && tail(1) && tail(2) && tail(3) &&
      !(first == 0xf0 && second < 0x90) && !(first == 0xf4 && second >= 0x90)) {
    return 4;
  }
  return 0;
}

inline bool is_space(char c) noexcept {
  return c == ' ' || c == '\t' || c == '\r' || c == '\n' || c == '\v' || c == '\f';
}

/// Without the white space at both ends.
inline std::string_view trimmed(std::string_view text) noexcept {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

/// The place of a line in messages; lines count from 1.
inline std::string line_name(const std::string& file, std::size_t line) {
  return fmt::format("{}, line {}", file, line);
}

/// The lines of a text file, without their ends (LF or CRLF) and without a byte order mark.
/// Throws Error(io), naming `file` and the line, for what is not UTF-8.
inline std::vector<std::string_view> split_lines(std::string_view contents,
                                                 const std::string& file) {
  if (contents.substr(0, 3) == "\xef\xbb\xbf") contents.remove_prefix(3);
  std::vector<std::string_view> lines;
  while (!contents.empty()) {
    std::string_view line = contents.substr(0, contents.find('\n'));
    contents.remove_prefix(std::min(contents.size(), line.size() + 1));
    for (std::size_t at = 0; at < line.size();) {
      const std::size_t length = utf8_length(line.substr(at));
      if (length == 0) {
        throw Error(ErrorCode::io, "read text", line_name(file, lines.size() + 1),
                    fmt::format("byte {} is not UTF-8", at + 1),
                    "convert the file, for example with iconv");
      }
      at += length;
    }
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    lines.push_back(line);
  }
  return lines;
}

/// A text file and its lines, which live as long as this does. Throws Error(io).
class LinesOfFile {
 public:
  explicit LinesOfFile(const std::filesystem::path& path)
      : file_(path),
        lines_(split_lines(
            {reinterpret_cast<const char*>(file_.contents().data()), file_.contents().size()},
            path.string())) {}

  const std::vector<std::string_view>& lines() const noexcept { return lines_; }

 private:
  MappedFile file_;
  std::vector<std::string_view> lines_;
};

}  // namespace dgc::data
