#include "data/speech.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <string_view>

#include "data/alphabet.h"
#include "data/collect.h"
#include "data/lines.h"
#include "data/unpack.h"
#include "dgc/error.h"

namespace dgc::data {
namespace {

namespace fs = std::filesystem;
constexpr const char* kOperation = "read speech";

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

[[noreturn]] void fail_line(const fs::path& file, std::size_t line, std::string problem,
                            std::string hint = {}) {
  throw Error(ErrorCode::io, kOperation, line_name(file.string(), line), std::move(problem),
              std::move(hint));
}

std::vector<std::string_view> columns_of(std::string_view line) {
  std::vector<std::string_view> columns;
  for (;;) {
    columns.push_back(line.substr(0, line.find('\t')));
    if (columns.back().size() == line.size()) return columns;
    line.remove_prefix(columns.back().size() + 1);
  }
}

void add_manifest(UtteranceCollector& collector, std::vector<Utterance>& list,
                  const fs::path& file) {
  const LinesOfFile contents(file);
  for (std::size_t i = 0; i < contents.lines().size(); ++i) {
    if (trimmed(contents.lines()[i]).empty()) continue;
    const std::vector<std::string_view> columns = columns_of(contents.lines()[i]);
    if (columns.size() < 2 || columns.size() > 3 || columns[0].empty()) {
      fail_line(file, i + 1,
                columns[0].empty() ? std::string("there is no path")
                                   : fmt::format("{} columns", columns.size()),
                "path<TAB>transcript or path<TAB>seconds<TAB>transcript is expected");
    }
    UtteranceEntry entry{file.parent_path() / fs::path(columns[0]), columns.back()};
    if (columns.size() == 3) {
      const std::string_view text = trimmed(columns[1]);
      double seconds = 0;
      const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), seconds);
      if (code != std::errc() || end != text.data() + text.size() || !std::isfinite(seconds)) {
        fail_line(file, i + 1, fmt::format("\"{}\" is no number of seconds", text));
      }
      entry.seconds = seconds;
    }
    collector.add(list, entry);
  }
}

/// A line of CMU's transcripts, "<s> TEXT </s> (ID)" or "TEXT (ID)", without what is not text.
std::string_view cmu_transcript(std::string_view line, std::string_view id) {
  line = trimmed(line);
  const std::string end = fmt::format("({})", id);
  if (!line.ends_with(end)) return {};
  line = trimmed(line.substr(0, line.size() - end.size()));
  if (line.starts_with("<s>")) line.remove_prefix(3);
  if (line.ends_with("</s>")) line.remove_suffix(4);
  return trimmed(line);
}

void add_cmu(UtteranceCollector& collector, std::vector<Utterance>& list, const fs::path& folder,
             const char* part) {
  const fs::path ids_file = folder / "etc" / fmt::format("an4_{}.fileids", part);
  const fs::path texts_file = folder / "etc" / fmt::format("an4_{}.transcription", part);
  const LinesOfFile ids(ids_file), texts(texts_file);
  if (ids.lines().size() != texts.lines().size()) {
    throw Error(ErrorCode::io, kOperation, texts_file.string(),
                fmt::format("{} lines, but {} has {}", texts.lines().size(), ids_file.string(),
                            ids.lines().size()));
  }
  for (std::size_t i = 0; i < ids.lines().size(); ++i) {
    const std::string id(trimmed(ids.lines()[i]));
    const std::string name = fs::path(id).filename().string();
    if (!trimmed(texts.lines()[i]).ends_with(fmt::format("({})", name))) {
      fail_line(texts_file, i + 1, fmt::format("this is not the transcript of {}", name));
    }
    fs::path file = folder / "wav" / (id + ".raw");
    for (const char* const ending : {".sph", ".wav"}) {
      if (!is_there(file)) file = folder / "wav" / (id + ending);
    }
    collector.add(list, {file, cmu_transcript(texts.lines()[i], name)});
  }
}

/// In the order of their names, which readdir() does not give.
std::vector<fs::path> sorted(std::vector<fs::path> paths) {
  std::sort(paths.begin(), paths.end());
  return paths;
}

void add_librispeech(UtteranceCollector& collector, std::vector<Utterance>& list,
                     const fs::path& folder) {
  std::vector<fs::path> tables;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.path().string().ends_with(".trans.txt")) tables.push_back(entry.path());
  }
  for (const fs::path& table : sorted(std::move(tables))) {
    const LinesOfFile contents(table);
    for (std::size_t i = 0; i < contents.lines().size(); ++i) {
      const std::string_view line = trimmed(contents.lines()[i]);
      if (line.empty()) continue;
      const std::string_view id = line.substr(0, line.find(' '));
      collector.add(list, {table.parent_path() / (std::string(id) + ".flac"),
                           line.substr(id.size()),
                           {},
                           folder.filename().string()});
    }
  }
}

/// Without remarks in brackets, and with the keys of a telephone by their names.
std::string asterisk_text(std::string_view text) {
  std::string spoken;
  int depth = 0;
  for (const char c : text) {
    if (c == '[' || c == '(' || c == '<') ++depth;
    if (depth == 0) {
      if (c == '*') {
        spoken += " star ";
      } else if (c == '#') {
        spoken += " pound ";
      } else {
        spoken += c;
      }
    }
    if ((c == ']' || c == ')' || c == '>') && depth > 0) --depth;
  }
  return spoken;
}

std::string unpacked(const fs::path& file) {
  UnpackedFile source(file);
  std::string text;
  std::vector<std::uint8_t> block(65536);
  while (const std::size_t count = source.read(block)) {
    text.append(block.begin(), block.begin() + static_cast<std::ptrdiff_t>(count));
  }
  return text;
}

}  // namespace

SpeechSet load_manifest(const fs::path& train_tsv, const fs::path& valid_tsv,
                        const fs::path& test_tsv, const SpeechOptions& options) {
  UtteranceCollector collector(train_tsv, options);
  add_manifest(collector, collector.train(), train_tsv);
  if (!valid_tsv.empty()) add_manifest(collector, collector.valid(), valid_tsv);
  if (!test_tsv.empty()) add_manifest(collector, collector.test(), test_tsv);
  return collector.finish(!valid_tsv.empty(), !test_tsv.empty());
}

SpeechSet load_an4(const fs::path& folder, const SpeechOptions& options) {
  for (const fs::path& place : {folder, folder / "an4"}) {
    if (is_there(place / "train.tsv")) {
      return load_manifest(place / "train.tsv", {}, place / "test.tsv", options);
    }
    if (is_there(place / "etc" / "an4_train.fileids")) {
      UtteranceCollector collector(place, options);
      add_cmu(collector, collector.train(), place, "train");
      add_cmu(collector, collector.test(), place, "test");
      return collector.finish(false, true);
    }
  }
  throw Error(ErrorCode::io, kOperation, folder.string(), "this is not the AN4 corpus",
              "it has etc/an4_train.fileids as CMU publishes it, or train.tsv and test.tsv");
}

SpeechSet load_librispeech(const fs::path& folder, const SpeechOptions& options) try {
  UtteranceCollector collector(folder, options);
  const fs::path root = is_there(folder / "LibriSpeech") ? folder / "LibriSpeech" : folder;
  std::vector<fs::path> parts;
  for (const fs::directory_entry& entry : fs::directory_iterator(root)) {
    if (entry.is_directory()) parts.push_back(entry.path());
  }
  std::array<bool, 3> has{};
  for (const fs::path& part : sorted(std::move(parts))) {
    const std::string name = part.filename().string();
    const std::size_t which = name.starts_with("train-")  ? 0
                              : name.starts_with("dev-")  ? 1
                              : name.starts_with("test-") ? 2
                                                          : 3;
    if (which == 3) continue;
    has[which] = true;
    add_librispeech(collector,
                    which == 0   ? collector.train()
                    : which == 1 ? collector.valid()
                                 : collector.test(),
                    part);
  }
  if (!has[0]) {
    throw Error(ErrorCode::io, kOperation, root.string(), "there is no folder train-…",
                "LibriSpeech has folders such as train-clean-100, dev-clean and test-clean");
  }
  return collector.finish(has[1], has[2]);
} catch (const fs::filesystem_error& error) {
  throw Error(ErrorCode::io, kOperation, error.path1().string(), error.code().message());
}

SpeechSet load_asterisk(const SpeechOptions& options, const AsteriskFiles& files) {
  for (const fs::path& path : {files.texts, files.sounds}) {
    if (is_there(path)) continue;
    throw Error(ErrorCode::io, kOperation, path.string(), "not found",
                "apt install asterisk-core-sounds-en asterisk-core-sounds-en-wav");
  }
  UtteranceCollector collector(files.sounds, options);
  const std::string contents = unpacked(files.texts);
  const std::vector<std::string_view> lines = split_lines(contents, files.texts.string());
  std::size_t count = 0;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const std::string_view line = trimmed(lines[i]);
    if (line.empty() || line.front() == ';') continue;
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos) fail_line(files.texts, i + 1, "there is no \"key: text\"");
    const fs::path file = files.sounds / (std::string(line.substr(0, colon)) + ".wav");
    const std::string text = asterisk_text(line.substr(colon + 1));
    // Not the user's data, and known: no reason to stop, however strict.
    const SpokenText spoken = spoken_text(text);
    if (spoken.text.empty()) {
      collector.skip(file, "not speech");
    } else if (!spoken.unknown.empty()) {
      collector.skip(file, fmt::format("how \"{}\" is spoken is not known", spoken.unknown));
    } else if (!is_there(file)) {
      collector.skip(file, "the prompt is not in the package");
    } else {
      const std::size_t place = ++count % 20;
      collector.add(place % 10 == 0 ? collector.test()
                    : place == 5    ? collector.valid()
                                    : collector.train(),
                    {file, text});
    }
  }
  return collector.finish(true, true);
}

}  // namespace dgc::data
