#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "base/file.h"
#include "data/audio.h"
#include "data/bible.h"
#include "data/catalogue.h"
#include "data/check_parts.h"
#include "data/digest.h"
#include "data/plain_text.h"
#include "data/speech.h"
#include "data/text.h"

namespace dgc::data {
namespace {

namespace fs = std::filesystem;

std::string described(const Corpus& corpus) {
  return fmt::format("tokens: {} train, {} validation, {} test; vocabulary {}",
                     with_commas(std::ssize(corpus.train)), with_commas(std::ssize(corpus.valid)),
                     with_commas(std::ssize(corpus.test)),
                     with_commas(std::ssize(corpus.vocabulary)));
}

/// All audio below the folder, as paths that can be compared.
std::set<fs::path> audio_files(const fs::path& folder) {
  std::set<fs::path> files;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
    const std::string extension = entry.path().extension().string();
    if (extension == ".wav" || extension == ".flac" || extension == ".sph" || extension == ".raw")
      files.insert(entry.path().lexically_normal());
  }
  return files;
}

using Halves = std::array<std::pair<const char*, const std::vector<Utterance>*>, 3>;

Halves halves_of(const SpeechSet& set) {
  return {{{"train", &set.train}, {"validation", &set.valid}, {"test", &set.test}}};
}

/// Counts, what the loader had to leave out, audio below `folder` (may be empty: none is looked
/// for) that no transcript mentions and, unless quick, every sample of every file.
void describe_speech(const SpeechSet& set, const fs::path& folder, const CheckOptions& options,
                     CheckedData& checked) {
  std::size_t total = 0;
  for (const auto& [half, utterances] : halves_of(set)) {
    double seconds = 0;
    for (const Utterance& utterance : *utterances) seconds += utterance.seconds;
    checked.facts.push_back(fmt::format("{}: {} utterances, {:.1f} minutes", half,
                                        with_commas(std::ssize(*utterances)), seconds / 60));
    total += utterances->size();
  }
  checked.facts.push_back(fmt::format("{} samples a second", with_commas(set.rate)));
  checked.problems.insert(checked.problems.end(), set.skipped.begin(), set.skipped.end());

  std::set<fs::path> silent;
  if (!folder.empty()) silent = audio_files(folder);
  std::size_t done = 0;
  for (const auto& [half, utterances] : halves_of(set)) {
    for (const Utterance& utterance : *utterances) {
      silent.erase(utterance.file.lexically_normal());
      if (!options.quick) attempt(checked, [&] { read_audio(utterance.file); });
      ++done;
      if (options.progress) options.progress(done, total);
    }
  }
  // Those that were left out have been named.
  for (const fs::path& file : silent) {
    const bool named = std::any_of(set.skipped.begin(), set.skipped.end(), [&](auto& line) {
      return line.find(file.filename().string()) != std::string::npos;
    });
    if (!named) checked.problems.push_back(file.string() + ": no transcript");
  }
}

void compare_utterances(const char* part, std::int64_t count, std::int64_t expected,
                        const char* set, CheckedData& checked) {
  if (count == expected) {
    checked.facts.push_back(fmt::format("{}: as many utterances as {} has", part, set));
  } else {
    checked.problems.push_back(fmt::format("{}: {} utterances; {} has {}", part, with_commas(count),
                                           set, with_commas(expected)));
  }
}

}  // namespace

void check_ptb(const fs::path& folder, CheckedData& checked) {
  checked.kind = "Penn Treebank";
  attempt(checked, [&] { checked.facts.push_back(described(load_ptb(folder, TextUnit::words))); });
  // Of the files as Mikolov's archive has them; he publishes no digests.
  constexpr std::array<std::array<const char*, 2>, 3> kFiles = {
      {{"ptb.train.txt", "f26c4b92c5fdc7b3f8c7cdcb991d8420"},
       {"ptb.valid.txt", "aa0affc06ff7c36e977d7cd49e3839bf"},
       {"ptb.test.txt", "8b80168b89c18661a38ef683c0dc3721"}}};
  const fs::path inside = folder / "simple-examples" / "data";
  const fs::path where = fs::exists(folder / "ptb.train.txt") ? folder : inside;
  std::size_t same = 0;
  for (const auto& [name, expected] : kFiles) {
    if (!fs::exists(where / name)) continue;
    attempt(checked, [&, name = name, expected = expected] {
      const std::string md5 = md5_of_file(where / name);
      same += md5 == expected;
      if (md5 != expected) {
        checked.problems.push_back(fmt::format("{}: MD5 {}; of Mikolov's file it is {}",
                                               (where / name).string(), md5, expected));
      }
    });
  }
  if (same == kFiles.size()) checked.facts.emplace_back("all files have the MD5s of Mikolov's");
}

void check_text(const fs::path& folder, CheckedData& checked) {
  checked.kind = "text";
  std::set<fs::path> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder))
    if (entry.path().extension() == ".txt" && entry.is_regular_file()) files.insert(entry.path());
  for (const fs::path& path : files) {
    attempt(checked, [&] {
      const MappedFile file(path);
      const std::string_view text(reinterpret_cast<const char*>(file.contents().data()),
                                  file.contents().size());
      std::int64_t words = 0;
      bool in_word = false;
      for (const char c : text) {
        const bool space = c == ' ' || (c >= '\t' && c <= '\r');
        words += !space && !in_word;
        in_word = !space;
      }
      checked.facts.push_back(fmt::format("{}: {} lines, {} words, {} bytes",
                                          path.filename().string(),
                                          with_commas(std::count(text.begin(), text.end(), '\n')),
                                          with_commas(words), with_commas(std::ssize(text))));
      if (words == 0) checked.problems.push_back(path.string() + ": has no words");
    });
  }
}

void check_bible(CheckedData& checked) {
  checked.kind = "King James Bible";
  attempt(checked, [&] { checked.facts.push_back(described(load_bible(TextUnit::words))); });
}

void check_linux_doc(const fs::path& folder, CheckedData& checked) {
  checked.kind = "documentation of Linux";
  attempt(checked, [&] {
    const PlainText text = read_linux_doc(folder);
    checked.facts.push_back(fmt::format("bytes without markup: {} train, {} validation, {} test",
                                        with_commas(std::ssize(text.train)),
                                        with_commas(std::ssize(text.valid)),
                                        with_commas(std::ssize(text.test))));
    // Of 6.1; other versions have about as much.
    if (std::ssize(text.train) < 5'000'000) {
      checked.problems.push_back(folder.string() + ": has less text than Debian's linux-doc");
    }
  });
}

void check_an4(const fs::path& folder, const CheckOptions& options, CheckedData& checked) {
  checked.kind = "AN4";
  attempt(checked, [&] {
    const SpeechSet set = load_an4(folder);
    describe_speech(set, folder, options, checked);
    // Validation is set aside from train.
    compare_utterances("train with validation", std::ssize(set.train) + std::ssize(set.valid), 948,
                       "AN4", checked);
    compare_utterances("test", std::ssize(set.test), 130, "AN4", checked);
  });
}

void check_librispeech(const fs::path& folder, const CheckOptions& options, CheckedData& checked) {
  checked.kind = "LibriSpeech";
  // From the corpus' own statistics, and those of Mini LibriSpeech.
  static const std::map<std::string, std::int64_t> kCounts = {
      {"train-clean-100", 28539}, {"train-clean-360", 104014}, {"train-other-500", 148688},
      {"dev-clean", 2703},        {"dev-other", 2864},         {"test-clean", 2620},
      {"test-other", 2939},       {"train-clean-5", 1519},     {"dev-clean-2", 1089}};
  attempt(checked, [&] {
    const SpeechSet set = load_librispeech(folder);
    describe_speech(set, folder, options, checked);
    std::map<std::string, std::int64_t> parts;
    for (const auto& [half, utterances] : halves_of(set))
      for (const Utterance& utterance : *utterances) ++parts[utterance.part];
    for (const auto& [part, count] : parts) {
      const auto known = kCounts.find(part);
      if (known != kCounts.end())
        compare_utterances(part.c_str(), count, known->second, "LibriSpeech", checked);
    }
  });
}

void check_manifest(const fs::path& folder, const CheckOptions& options, CheckedData& checked) {
  checked.kind = "manifest";
  const auto table = [&](std::initializer_list<const char*> names) {
    for (const char* const name : names)
      if (fs::exists(folder / name)) return folder / name;
    return fs::path();
  };
  attempt(checked, [&] {
    const fs::path train = table({"train.tsv"});
    if (train.empty()) {
      checked.problems.push_back(folder.string() + ": has tables, but no train.tsv");
      return;
    }
    const SpeechSet set =
        load_manifest(train, table({"valid.tsv", "dev.tsv"}), table({"test.tsv"}));
    describe_speech(set, folder, options, checked);
  });
}

void check_asterisk(const CheckOptions& options, CheckedData& checked) {
  checked.kind = "Asterisk prompts";
  attempt(checked, [&] {
    SpeechSet set = load_asterisk();
    // Tones and texts that are not what is spoken: so it is published, and no fault of the copy.
    checked.facts.push_back(
        fmt::format("{} prompts are left out: tones, or not what is written", set.skipped.size()));
    set.skipped.clear();
    describe_speech(set, {}, options, checked);
  });
}

}  // namespace dgc::data
