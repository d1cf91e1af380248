#include "data/plain_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>

#include "data/bible.h"
#include "data/lines.h"
#include "data/unpack.h"
#include "dgc/error.h"

namespace dgc::data {
namespace {

namespace fs = std::filesystem;

// Of a folder: a part of the files is as good as another, whatever their order, because files that
// are about the same thing are beside each other.
constexpr std::size_t kCycle = 40;
constexpr std::size_t kValid = 19;
constexpr std::size_t kTest = 39;

std::string contents_of(const fs::path& path) {
  UnpackedFile file(path);
  std::string text;
  std::array<std::uint8_t, 65536> buffer{};
  while (const std::size_t count = file.read(buffer)) {
    text.append(reinterpret_cast<const char*>(buffer.data()), count);
  }
  return text;
}

bool is_text(fs::path path) {
  if (path.extension() == ".gz") path = path.stem();
  const fs::path extension = path.extension();
  return extension == ".txt" || extension == ".rst" || extension == ".md";
}

/// Those below `folder` by their paths, without those that `skipped` names.
std::vector<fs::path> text_files(const fs::path& folder, std::span<const std::string> skipped) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::recursive_directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    const std::string inside = it->path().lexically_relative(folder).generic_string();
    if (std::find(skipped.begin(), skipped.end(), inside) != skipped.end()) {
      it.disable_recursion_pending();
    } else if (it->is_regular_file() && is_text(it->path())) {
      files.push_back(it->path());
    }
  }
  if (error) {
    throw Error(ErrorCode::io, "read text", folder.string(),
                fmt::format("cannot be listed: {}", error.message()));
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::string joined(std::span<const fs::path> files) {
  std::string text;
  for (const fs::path& file : files) text += without_markup(contents_of(file));
  return text;
}

[[noreturn]] void too_little(const fs::path& path, const std::string& what) {
  throw Error(ErrorCode::io, "read text", path.string(),
              what + " are too few to set some aside for validation and test",
              "give more, or --valid and --test");
}

PlainText split_folder(const fs::path& folder, std::span<const std::string> skipped) {
  const std::vector<fs::path> files = text_files(folder, skipped);
  if (files.size() < kCycle) {
    too_little(folder, fmt::format("{} .txt, .rst and .md files", files.size()));
  }
  PlainText text;
  for (std::size_t i = 0; i < files.size(); ++i) {
    const std::size_t place = i % kCycle;
    std::string& part = place == kValid ? text.valid : place == kTest ? text.test : text.train;
    part += without_markup(contents_of(files[i]));
  }
  return text;
}

/// A file, or all of a folder.
std::string read_one(const fs::path& path) {
  return fs::is_directory(path) ? joined(text_files(path, {})) : contents_of(path);
}

/// The last twentieth of the lines, taken off.
std::string set_aside(std::string& text, const fs::path& path, std::size_t lines) {
  std::size_t begin = text.size();
  for (std::size_t i = 0; i < lines / 20 && begin > 0; ++i) {
    const std::size_t before = begin < 2 ? std::string::npos : text.rfind('\n', begin - 2);
    begin = before == std::string::npos ? 0 : before + 1;
  }
  if (begin == 0 || begin == text.size()) too_little(path, fmt::format("{} lines", lines));
  std::string part = text.substr(begin);
  text.resize(begin);
  return part;
}

void require_text(const std::string& text, const fs::path& path) {
  if (std::all_of(text.begin(), text.end(), is_space)) {
    throw Error(ErrorCode::io, "read text", path.string(), "has no text");
  }
}

// Markup.

bool one_of(char c, std::string_view characters) {
  return characters.find(c) != std::string_view::npos;
}

/// A line under a title, or a frame of a table.
bool is_rule(std::string_view line) {
  line = trimmed(line);
  return line.size() >= 3 && std::all_of(line.begin(), line.end(),
                                         [](char c) { return one_of(c, "=-~^\"'`#*+.:|_ "); });
}

/// ".. note::", ".. _label:", ":maxdepth: 2"
bool is_directive(std::string_view line) {
  line = trimmed(line);
  if (line.starts_with(".. ") || line == "..") return true;
  if (!line.starts_with(':') || line.size() < 3) return false;
  const std::size_t end = line.find(':', 1);
  return end != std::string_view::npos && end > 1 &&
         line.substr(1, end - 1).find(' ') == line.npos &&
         (end + 1 == line.size() || line[end + 1] == ' ');
}

/// The end of what begins with a mark, which is not in it; npos where the mark is no markup.
std::size_t closing(std::string_view line, std::size_t begin, std::string_view mark) {
  if (begin >= line.size() || is_space(line[begin])) return std::string_view::npos;
  const std::size_t end = line.find(mark, begin);
  if (end == std::string_view::npos || end == begin || is_space(line[end - 1])) {
    return std::string_view::npos;
  }
  return end;
}

/// ":ref:`text <target>`", "``code``", "**strong**", "*emphasis*", "`link`_".
void add_line(std::string& out, std::string_view line) {
  for (std::size_t i = 0; i < line.size();) {
    if (line[i] == ':') {
      std::size_t end = i + 1;
      while (end < line.size() &&
             (one_of(line[end], "-:+") || (line[end] >= 'a' && line[end] <= 'z'))) {
        ++end;
      }
      if (end > i + 2 && line[end - 1] == ':' && end < line.size() && line[end] == '`') i = end;
    }
    bool was_mark = false;
    for (const std::string_view mark : {"``", "**", "`", "*"}) {
      if (!line.substr(i).starts_with(mark)) continue;
      // An asterisk inside a word, or after one, is a pointer or a product.
      if (mark == "*" && i > 0 && !one_of(line[i - 1], " (\"'")) break;
      const std::size_t end = closing(line, i + mark.size(), mark);
      if (end == std::string_view::npos) break;
      std::string_view inside = line.substr(i + mark.size(), end - i - mark.size());
      if (mark == "`") {
        const std::size_t target = inside.find(" <");
        if (target != std::string_view::npos && inside.back() == '>')
          inside = inside.substr(0, target);
      }
      out += inside;
      i = end + mark.size();
      if (mark == "`") {
        while (i < line.size() && line[i] == '_') ++i;
      }
      was_mark = true;
      break;
    }
    if (!was_mark) out += line[i++];
  }
}

}  // namespace

std::string without_markup(std::string_view text) {
  std::string out;
  std::size_t empty = 2;  // lines in a row
  bool last_was_directive = false;
  while (!text.empty()) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    while (!line.empty() && is_space(line.back())) line.remove_suffix(1);
    const bool directive =
        is_directive(line) && (trimmed(line).front() == '.' || last_was_directive || empty > 0);
    last_was_directive = directive;
    if (directive || (!line.empty() && is_rule(line))) continue;
    if (line.empty()) {
      if (++empty > 1) continue;
    } else {
      empty = 0;
    }
    // Two colons stand before an example; the reader sees one, or none where they are alone.
    if (line.ends_with("::")) line.remove_suffix(1);
    if (trimmed(line) == ":") continue;
    add_line(out, line);
    out += '\n';
  }
  if (empty == 0 && !out.empty()) out += '\n';
  return out;
}

PlainText read_plain_text(const TextFiles& files) {
  PlainText text;
  const bool splits = files.valid.empty() && files.test.empty();
  if (splits && fs::is_directory(files.train)) {
    text = split_folder(files.train, {});
  } else {
    text.train = read_one(files.train);
    const auto lines =
        static_cast<std::size_t>(std::count(text.train.begin(), text.train.end(), '\n'));
    require_text(text.train, files.train);
    text.test =
        files.test.empty() ? set_aside(text.train, files.train, lines) : read_one(files.test);
    text.valid =
        files.valid.empty() ? set_aside(text.train, files.train, lines) : read_one(files.valid);
  }
  require_text(text.train, files.train);
  require_text(text.valid, files.valid.empty() ? files.train : files.valid);
  require_text(text.test, files.test.empty() ? files.train : files.test);
  return text;
}

PlainText read_plain_bible() {
  const BibleParts parts = read_bible();
  const auto joined_lines = [](const std::vector<std::string>& verses) {
    std::string text;
    for (const std::string& verse : verses) text += verse + "\n";
    return text;
  };
  return {joined_lines(parts.train), joined_lines(parts.valid), joined_lines(parts.test)};
}

PlainText read_linux_doc(const fs::path& folder) {
  static const std::vector<std::string> kSkipped = {"translations", "devicetree/bindings"};
  if (!fs::is_directory(folder)) {
    throw Error(ErrorCode::io, "read text", folder.string(), "is not a folder",
                "apt-get install linux-doc");
  }
  return split_folder(folder, kSkipped);
}

}  // namespace dgc::data
