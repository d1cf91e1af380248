#include "data/bible.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "data/lines.h"
#include "dgc/error.h"

namespace dgc::data {
namespace {

constexpr std::size_t kVerses = 31'102;
constexpr std::size_t kBlock = 50;  // verses
// -f prints a verse per line with its reference; without a terminal as input it does not ask.
constexpr const char* kCommand = "bible -f 'gen1:1-rev22:21' </dev/null 2>/dev/null";

struct Output {
  std::string text;
  int status = 0;
};

Output run(const char* command) {
  std::FILE* const pipe = ::popen(command, "re");
  if (pipe == nullptr) {
    throw Error(ErrorCode::io, "read text", "bible", "the program cannot be started");
  }
  Output output;
  std::array<char, 65536> buffer;
  while (const std::size_t count = std::fread(buffer.data(), 1, buffer.size(), pipe)) {
    output.text.append(buffer.data(), count);
  }
  output.status = ::pclose(pipe);
  return output;
}

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || static_cast<unsigned char>(c) >= 0x80; }

/// Spaces around punctuation, except apostrophes and hyphens that touch a letter on both sides, or
/// apostrophes after a letter ("kings'").
std::string punctuation_apart(std::string_view text) {
  std::string apart;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const bool after = i > 0 && is_letter(text[i - 1]);
    const bool before = i + 1 < text.size() && is_letter(text[i + 1]);
    if (is_letter(c) || is_space(c) || (c >= '0' && c <= '9') || (c == '\'' && after) ||
        (c == '-' && after && before)) {
      apart += c;
    } else {
      apart += ' ';
      apart += c;
      apart += ' ';
    }
  }
  return apart;
}

}  // namespace

BibleParts read_bible() {
  const Output output = run(kCommand);
  const std::vector<std::string_view> lines = split_lines(output.text, "output of bible");
  if (lines.size() != kVerses) {
    if (WIFEXITED(output.status) && WEXITSTATUS(output.status) == 127) {
      throw Error(ErrorCode::io, "read text", "bible", "the program is not installed",
                  "apt install bible-kjv, or give a text of your own");
    }
    throw Error(ErrorCode::io, "read text", "bible",
                fmt::format("the program printed {} verses instead of {}", lines.size(), kVerses),
                "Debian's bible-kjv is what is expected");
  }
  BibleParts parts;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const std::string_view line = lines[i];
    const std::size_t space = line.find(' ');  // after the reference, "Ge1:1"
    if (space == std::string_view::npos ||
        line.substr(0, space).find(':') == std::string_view::npos) {
      throw Error(ErrorCode::io, "read text", line_name("output of bible", i + 1),
                  "the line has no verse");
    }
    const std::size_t block = i / kBlock % 20;
    auto& part = block == 9 ? parts.valid : block == 19 ? parts.test : parts.train;
    part.emplace_back(trimmed(line.substr(space)));
  }
  return parts;
}

Corpus load_bible(TextUnit unit, std::int64_t max_vocabulary) {
  BibleParts parts = read_bible();
  TextLines lines;
  for (auto [verses, part] : {std::pair{&parts.train, &lines.train},
                              {&parts.valid, &lines.valid},
                              {&parts.test, &lines.test}}) {
    for (std::string& verse : *verses) {
      for (char& c : verse) {
        if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
      }
      if (unit == TextUnit::words) verse = punctuation_apart(verse);
      part->push_back(verse);
    }
  }
  return make_corpus(lines, unit, max_vocabulary);
}

}  // namespace dgc::data
