#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "data/alphabet.h"
#include "data/bible.h"
#include "data/error_rate.h"
#include "data/lines.h"
#include "data/text.h"
#include "support/scratch.h"

namespace dgc::data {
namespace {

using test::error_text;
using test::expect_contains;
using test::Scratch;

using Strings = std::vector<std::string>;

Strings read(const Corpus& corpus, const std::vector<std::int32_t>& stream) {
  Strings tokens;
  for (const std::int32_t token : stream) {
    tokens.push_back(corpus.vocabulary.at(static_cast<std::size_t>(token)));
  }
  return tokens;
}

TEST(DataText, WordsByFrequencyThenFirstAppearance) {
  const Scratch folder;
  const TextFiles files{folder.write("a", " b a \n\tc  a b a\r\n"), folder.write("b", "a z\n"),
                        folder.write("c", "c\n\nz")};
  const Corpus corpus = load_text(files, TextUnit::words);
  EXPECT_EQ(corpus.vocabulary, (Strings{"a", "b", "<eos>", "c", "<unk>"}));
  EXPECT_EQ(read(corpus, corpus.train), (Strings{"b", "a", "<eos>", "c", "a", "b", "a", "<eos>"}));
  EXPECT_EQ(read(corpus, corpus.valid), (Strings{"a", "<unk>", "<eos>"}));
  EXPECT_EQ(read(corpus, corpus.test), (Strings{"c", "<eos>", "<eos>", "<unk>", "<eos>"}));
}

TEST(DataText, CharactersAreCodePoints) {
  const Scratch folder;
  const TextFiles files{folder.write("a", "\xef\xbb\xbf né \r\n é𝄞 é\n"), folder.write("b", "ö\n"),
                        folder.write("c", "n")};
  const Corpus corpus = load_text(files, TextUnit::characters);
  EXPECT_EQ(corpus.vocabulary, (Strings{"é", "\n", "n", "𝄞", " ", "<unk>"}));
  EXPECT_EQ(read(corpus, corpus.train), (Strings{"n", "é", "\n", "é", "𝄞", " ", "é", "\n"}));
  EXPECT_EQ(read(corpus, corpus.valid), (Strings{"<unk>", "\n"}));
}

TEST(DataText, KeepsTheMostFrequent) {
  const TextLines lines{{"a a a b b c", "a"}, {"b"}, {"c"}};
  EXPECT_EQ(make_corpus(lines, TextUnit::words, 4).vocabulary,
            (Strings{"a", "b", "<eos>", "<unk>"}));
  const Corpus corpus = make_corpus(lines, TextUnit::words, 3);
  EXPECT_EQ(corpus.vocabulary, (Strings{"a", "b", "<unk>"}));
  EXPECT_EQ(read(corpus, corpus.test), (Strings{"<unk>", "<unk>"}));
  // Where the text has <unk> among the most frequent, nothing gives way to it.
  EXPECT_EQ(make_corpus({{"<unk> <unk> a b"}, {"a"}, {"b"}}, TextUnit::words, 2).vocabulary,
            (Strings{"<unk>", "a"}));
  EXPECT_EQ(make_corpus(lines, TextUnit::words, 100).vocabulary.size(), 5u);
  for (const std::int64_t bad : {-1, 1}) {
    expect_contains(error_text([&] { make_corpus(lines, TextUnit::words, bad); }),
                    {"invalid_argument", "vocabulary", std::to_string(bad)});
  }
}

TEST(DataText, SetsTheLastTwentiethsAside) {
  const Scratch folder;
  std::string text;
  for (int i = 0; i < 45; ++i) text += fmt::format("w{}\n", i);
  const auto file = folder.write("all", text);
  const Corpus both = load_text({file, {}, {}}, TextUnit::words);
  EXPECT_EQ(both.train.size(), 41u * 2);
  EXPECT_EQ(read(both, both.train).back(), "<eos>");
  EXPECT_EQ(both.vocabulary.back(), "<unk>");
  EXPECT_EQ(std::count(both.vocabulary.begin(), both.vocabulary.end(), "w41"), 0);
  EXPECT_EQ(both.valid.size(), 4u);
  EXPECT_EQ(both.test.size(), 4u);
  const Corpus one = load_text({file, file, {}}, TextUnit::words);
  EXPECT_EQ(one.train.size(), 43u * 2);
  EXPECT_EQ(one.valid.size(), 45u * 2);
  expect_contains(error_text([&] {
                    load_text({folder.write("few", "a\nb\n"), {}, {}}, TextUnit::words);
                  }),
                  {"io: ", "few", "2 lines are too few"});
}

TEST(DataText, NamesBadFiles) {
  const Scratch folder;
  const auto good = folder.write("good", "a\n");
  const auto load = [&](const std::filesystem::path& train) {
    return error_text([&] { load_text({train, good, good}, TextUnit::words); });
  };
  expect_contains(load(folder / "none"), {"io: ", "none", "cannot open"});
  expect_contains(load(folder.write("empty", "")), {"io: ", "empty", "no text"});
  expect_contains(load(folder.write("blank", "\n  \n")), {"io: ", "blank", "no text"});
  expect_contains(load(folder.write("latin1", "ok\nna\xefve\n")),
                  {"io: ", "latin1, line 2", "byte 3 is not UTF-8"});
  expect_contains(error_text([&] { load_ptb(folder.path(), TextUnit::words); }),
                  {"io: ", "ptb.train.txt"});
}

TEST(DataText, Utf8IsStrict) {
  for (const std::string_view good : {"a", "\xc2\x80", "\xdf\xbf", "\xe0\xa0\x80", "\xed\x9f\xbf",
                                      "\xee\x80\x80", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_EQ(utf8_length(good), good.size());
    EXPECT_EQ(utf8_length(std::string(good) + "a"), good.size());
  }
  for (const std::string_view bad :
       {"", "\x80", "\xc0\x80", "\xc1\xbf", "\xc2", "\xc2g", "\xe0\x9f\xbf", "\xed\xa0\x80",
        "\xe2\x82", "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff"}) {
    EXPECT_EQ(utf8_length(bad), 0u);
  }
}

TEST(DataText, PennTreebank) {
  const auto folder = test::published_data("ptb");
  if (folder.empty()) GTEST_SKIP() << "$DGC_DATA has no ptb";
  const Corpus words = load_ptb(folder, TextUnit::words);
  EXPECT_EQ(words.vocabulary.size(), 10'000u);
  EXPECT_EQ(words.train.size(), 929'589u);
  EXPECT_EQ(words.valid.size(), 73'760u);
  EXPECT_EQ(words.test.size(), 82'430u);
  EXPECT_EQ(words.vocabulary[0], "the");
  EXPECT_EQ(words.vocabulary[1], "<unk>");
  const Corpus characters = load_ptb(folder, TextUnit::characters);
  EXPECT_EQ(characters.vocabulary[0], " ");
  EXPECT_LT(characters.vocabulary.size(), 60u);
  const Scratch archive;
  std::filesystem::create_directories(archive / "simple-examples");
  std::filesystem::create_directory_symlink(folder, archive / "simple-examples/data");
  EXPECT_EQ(load_ptb(archive.path(), TextUnit::words).test, words.test);
}

TEST(DataText, Bible) {
  if (!std::filesystem::exists("/usr/bin/bible")) GTEST_SKIP() << "bible-kjv is not installed";
  const Corpus words = load_bible(TextUnit::words);
  EXPECT_EQ(words.train.size() + words.valid.size() + words.test.size(), 944'477u);
  EXPECT_EQ(words.vocabulary[0], ",");
  EXPECT_EQ(words.vocabulary[1], "the");
  const Strings train = read(words, words.train);
  EXPECT_EQ(Strings(train.begin(), train.begin() + 12),
            (Strings{"in", "the", "beginning", "god", "created", "the", "heaven", "and", "the",
                     "earth", ".", "<eos>"}));
  EXPECT_EQ(std::count(train.begin(), train.end(), "<eos>"), 31'102 - 31 * 100);
  const Strings valid = read(words, words.valid), test = read(words, words.test);
  EXPECT_EQ(std::count(valid.begin(), valid.end(), "<eos>"), 31 * 50);
  EXPECT_EQ(std::count(test.begin(), test.end(), "<eos>"), 31 * 50);
  // Verses 451 and 951: the tenth and the twentieth block of 50.
  EXPECT_EQ(Strings(valid.begin() + 4, valid.begin() + 9), (Strings{",", "if", "i", "find", "in"}));
  EXPECT_EQ(Strings(test.begin(), test.begin() + 6),
            (Strings{"and", "he", "rose", "up", "that", "night"}));
  EXPECT_NE(std::find(train.begin(), train.end(), "god's"), train.end());
  EXPECT_LT(words.vocabulary.size(), 13'000u);
  EXPECT_EQ(load_bible(TextUnit::words, 5000).vocabulary.size(), 5000u);

  const Corpus characters = load_bible(TextUnit::characters);
  std::string start;
  const std::vector<std::int32_t> first(characters.train.begin(), characters.train.begin() + 55);
  for (const std::string& character : read(characters, first)) start += character;
  EXPECT_EQ(start, "in the beginning god created the heaven and the earth.\n");
}

TEST(DataText, BibleMissingOrAnother) {
  const Scratch folder;
  const std::string path = std::getenv("PATH");
  const auto with_program = [&](const char* script) {
    if (script != nullptr) {
      std::filesystem::permissions(folder.write("bible", script),
                                   std::filesystem::perms::owner_all);
    }
    ::setenv("PATH", folder.path().c_str(), 1);
    const std::string error = error_text([] { load_bible(TextUnit::words); });
    ::setenv("PATH", path.c_str(), 1);
    return error;
  };
  expect_contains(with_program(nullptr), {"io: ", "not installed", "apt install bible-kjv"});
  expect_contains(with_program("#!/bin/sh\necho 'Ge1:1 In the beginning'\n"),
                  {"io: ", "1 verses instead of 31102"});
  expect_contains(with_program("#!/bin/sh\ni=0; while [ $i -lt 31102 ]; do echo verse; "
                               "i=$((i+1)); done\n"),
                  {"io: ", "line 1", "no verse"});
}

TEST(DataAlphabet, LabelsAreDeepSpeechs) {
  EXPECT_EQ(Alphabet::size(), 29);
  EXPECT_EQ(Alphabet::encode("'AZ "), (std::vector<std::int32_t>{1, 2, 27, 28}));
  EXPECT_EQ(Alphabet::decode(Alphabet::encode("IT'S A TEST")), "IT'S A TEST");
  EXPECT_EQ(Alphabet::decode(std::vector<std::int32_t>{0, 2}), "_A");
  for (const char* const bad : {"a", "_", "1"}) {
    expect_contains(error_text([&] { Alphabet::encode(bad); }), {"invalid_argument", bad});
  }
  for (const std::int32_t bad : {-1, 29}) {
    expect_contains(error_text([&] { Alphabet::decode(std::vector{bad}); }), {"invalid_argument"});
  }
}

TEST(DataAlphabet, WritesWhatIsSpoken) {
  const auto text = [](std::string_view transcript) {
    const SpokenText spoken = spoken_text(transcript);
    EXPECT_EQ(spoken.unknown, "") << transcript;
    return spoken.text;
  };
  EXPECT_EQ(text("  Hello,  world!\t"), "HELLO WORLD");
  EXPECT_EQ(text("'TIS THE DOGS' BONE, ISN'T IT"), "'TIS THE DOGS' BONE ISN'T IT");
  EXPECT_EQ(text("she said 'yes' ' to “Call‑Forward”—it’s (so) “odd”…"),
            "SHE SAID YES TO CALL FORWARD IT'S SO ODD");
  EXPECT_EQ(text("press 1, 2 or 0."), "PRESS ONE TWO OR ZERO");
  EXPECT_EQ(text("... and then... no"), "AND THEN NO");
  EXPECT_EQ(text(""), "");
  EXPECT_EQ(text("?! '"), "");
  const std::vector<std::pair<const char*, const char*>> unknown = {
      {"dial 500 now", "500"},      {"at www.example.org.", "www.example.org."},
      {"a 28.8 modem", "28.8"},     {"3D audio", "3D"},
      {"a déjà vu", "déjà"},        {"one $ each", "$"},
      {"pay (12) then 13", "(12)"}, {"bad \xff byte", "\xff"},
  };
  for (const auto& [transcript, word] : unknown) {
    EXPECT_EQ(spoken_text(transcript).unknown, word) << transcript;
  }
}

TEST(DataAlphabet, GreedyCtc) {
  using Labels = std::vector<std::int32_t>;
  EXPECT_EQ(greedy_ctc(Labels{0, 5, 5, 0, 5, 3, 3, 0}), (Labels{5, 5, 3}));
  EXPECT_EQ(greedy_ctc(Labels{5, 3, 5}), (Labels{5, 3, 5}));
  EXPECT_EQ(greedy_ctc(Labels{0, 0}), Labels{});
  EXPECT_EQ(greedy_ctc(Labels{}), Labels{});
  EXPECT_EQ(ctc_frames_needed(Labels{5, 5, 5, 3}), 6);
  EXPECT_EQ(ctc_frames_needed(Labels{}), 0);
}

TEST(DataErrorRate, CountsEdits) {
  const auto words = [](std::string_view reference, std::string_view hypothesis) {
    const ErrorCount count = word_errors(reference, hypothesis);
    return std::pair(count.errors, count.length);
  };
  using Count = std::pair<std::int64_t, std::int64_t>;
  EXPECT_EQ(words("A B C", "A B C"), Count(0, 3));
  EXPECT_EQ(words("A B C", "A C"), Count(1, 3));
  EXPECT_EQ(words("A B C", "A X B C"), Count(1, 3));
  EXPECT_EQ(words("A B C", "A X C"), Count(1, 3));
  EXPECT_EQ(words(" A  B ", "B A"), Count(2, 2));
  EXPECT_EQ(words("A B", ""), Count(2, 2));
  EXPECT_EQ(words("", "A B"), Count(2, 0));
  const ErrorCount kitten = character_errors("KITTEN", "SITTING");
  EXPECT_EQ(kitten.errors, 3);
  EXPECT_EQ(kitten.length, 6);
  EXPECT_DOUBLE_EQ(kitten.rate(), 0.5);
  EXPECT_EQ(character_errors("A B", "AB").errors, 1);
  ErrorCount total = kitten;
  total += {1, 2};
  EXPECT_DOUBLE_EQ(total.rate(), 0.5);
  EXPECT_DOUBLE_EQ(ErrorCount{}.rate(), 0.0);
}

/// By its definition: the least of the three ways to end.
std::int64_t slow_distance(std::string_view a, std::string_view b) {
  if (a.empty() || b.empty()) return static_cast<std::int64_t>(a.size() + b.size());
  const std::string_view a1 = a.substr(1), b1 = b.substr(1);
  return std::min({slow_distance(a1, b) + 1, slow_distance(a, b1) + 1,
                   slow_distance(a1, b1) + (a[0] == b[0] ? 0 : 1)});
}

TEST(DataErrorRate, AgreesWithTheDefinition) {
  std::mt19937 random(1);
  const auto sample = [&] {
    std::string text(random() % 6, ' ');
    for (char& c : text) c = static_cast<char>('A' + random() % 3);
    return text;
  };
  for (int i = 0; i < 300; ++i) {
    const std::string a = sample(), b = sample();
    EXPECT_EQ(character_errors(a, b).errors, slow_distance(a, b)) << a << " " << b;
  }
}

}  // namespace
}  // namespace dgc::data
