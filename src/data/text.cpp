// Text as numbers. A line is words, or characters, with a mark at its end. The vocabulary has the
// tokens of the training text by falling frequency, equals by first appearance, so that the same
// text gives the same numbers everywhere; tokens that it does not have become <unk>.
#include "data/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <unordered_map>

#include "data/lines.h"
#include "dgc/error.h"

namespace dgc::data {
namespace {

constexpr std::string_view kUnknown = "<unk>";

template <typename Take>
void for_each_token(std::string_view line, TextUnit unit, const Take& take) {
  line = trimmed(line);
  if (unit == TextUnit::characters) {
    while (!line.empty()) {
      const std::size_t length = std::max<std::size_t>(utf8_length(line), 1);
      take(line.substr(0, length));
      line.remove_prefix(length);
    }
    take(std::string_view("\n"));
    return;
  }
  while (!line.empty()) {
    const std::string_view word(
        line.begin(), std::find_if(line.begin(), line.end(), [](char c) { return is_space(c); }));
    take(word);
    line = trimmed(line.substr(word.size()));
  }
  take(std::string_view("<eos>"));
}

/// The tokens of `lines` by falling frequency, equals by first appearance.
std::vector<std::string_view> ranked_tokens(const std::vector<std::string_view>& lines,
                                            TextUnit unit) {
  struct Entry {
    std::string_view token;
    std::int64_t count = 0;
  };
  std::vector<Entry> entries;
  std::unordered_map<std::string_view, std::size_t> places;
  for (const std::string_view line : lines) {
    for_each_token(line, unit, [&](std::string_view token) {
      const auto [found, is_new] = places.try_emplace(token, entries.size());
      if (is_new) entries.push_back({token});
      ++entries[found->second].count;
    });
  }
  std::stable_sort(entries.begin(), entries.end(),
                   [](const Entry& a, const Entry& b) { return a.count > b.count; });
  std::vector<std::string_view> tokens;
  tokens.reserve(entries.size() + 1);
  for (const Entry& entry : entries) tokens.push_back(entry.token);
  return tokens;
}

std::vector<std::string_view> lines_with_text(const LinesOfFile& file,
                                              const std::filesystem::path& path) {
  const auto& lines = file.lines();
  if (std::all_of(lines.begin(), lines.end(), [](auto line) { return trimmed(line).empty(); })) {
    throw Error(ErrorCode::io, "read text", path.string(), "the file has no text");
  }
  return lines;
}

}  // namespace

Corpus make_corpus(const TextLines& lines, TextUnit unit, std::int64_t max_vocabulary) {
  if (max_vocabulary < 0 || max_vocabulary == 1) {
    throw Error(ErrorCode::invalid_argument, "read text", "vocabulary",
                fmt::format("{} tokens are asked for", max_vocabulary),
                "give 2 or more, or 0 for all");
  }
  std::vector<std::string_view> tokens = ranked_tokens(lines.train, unit);
  if (std::find(tokens.begin(), tokens.end(), kUnknown) == tokens.end()) {
    tokens.push_back(kUnknown);
  }
  const auto kept = max_vocabulary == 0 ? tokens.size() : static_cast<std::size_t>(max_vocabulary);
  if (tokens.size() > kept) {
    const auto end = tokens.begin() + static_cast<std::ptrdiff_t>(kept);
    if (std::find(tokens.begin(), end, kUnknown) == end) tokens[kept - 1] = kUnknown;
    tokens.resize(kept);
  }
  if (tokens.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
    throw Error(ErrorCode::limit_exceeded, "read text", "vocabulary", "more than 2^31 tokens");
  }

  Corpus corpus;
  corpus.vocabulary.assign(tokens.begin(), tokens.end());
  std::unordered_map<std::string_view, std::int32_t> numbers;
  for (const std::string_view token : tokens) {
    numbers.emplace(token, static_cast<std::int32_t>(numbers.size()));
  }
  const std::int32_t unknown = numbers.at(kUnknown);
  const auto numbered = [&](const std::vector<std::string_view>& part) {
    std::vector<std::int32_t> stream;
    for (const std::string_view line : part) {
      for_each_token(line, unit, [&](std::string_view token) {
        const auto found = numbers.find(token);
        stream.push_back(found == numbers.end() ? unknown : found->second);
      });
    }
    return stream;
  };
  corpus.train = numbered(lines.train);
  corpus.valid = numbered(lines.valid);
  corpus.test = numbered(lines.test);
  return corpus;
}

Corpus load_text(const TextFiles& files, TextUnit unit, std::int64_t max_vocabulary) {
  std::vector<std::unique_ptr<LinesOfFile>> open;  // the lines below point into these
  const auto lines_of = [&](const std::filesystem::path& path) {
    return lines_with_text(*open.emplace_back(std::make_unique<LinesOfFile>(path)), path);
  };
  TextLines lines;
  lines.train = lines_of(files.train);
  const std::size_t part = lines.train.size() / 20;
  const auto set_aside = [&] {
    if (part == 0) {
      throw Error(ErrorCode::io, "read text", files.train.string(),
                  fmt::format("{} lines are too few to set some aside for validation and test",
                              lines.train.size()),
                  "give files for validation and test");
    }
    const auto begin = lines.train.end() - static_cast<std::ptrdiff_t>(part);
    std::vector<std::string_view> aside(begin, lines.train.end());
    lines.train.erase(begin, lines.train.end());
    return aside;
  };
  lines.test = files.test.empty() ? set_aside() : lines_of(files.test);
  lines.valid = files.valid.empty() ? set_aside() : lines_of(files.valid);
  return make_corpus(lines, unit, max_vocabulary);
}

Corpus load_ptb(const std::filesystem::path& folder, TextUnit unit) {
  for (const std::filesystem::path& place : {folder, folder / "simple-examples" / "data"}) {
    const TextFiles files{place / "ptb.train.txt", place / "ptb.valid.txt", place / "ptb.test.txt"};
    std::error_code ignored;
    if (std::filesystem::exists(files.train, ignored)) return load_text(files, unit);
  }
  throw Error(ErrorCode::io, "read text", folder.string(), "there is no ptb.train.txt",
              "PTB is ptb.train.txt, ptb.valid.txt and ptb.test.txt, also in simple-examples/data "
              "as Mikolov's archive has them");
}

}  // namespace dgc::data
