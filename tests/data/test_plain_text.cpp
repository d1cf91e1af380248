#include "data/plain_text.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/random.h"
#include "data/bible.h"
#include "data/bpe.h"
#include "support/scratch.h"

namespace dgc::data {
namespace {

using test::error_text;
using test::expect_contains;
using test::Scratch;

std::string any_bytes(std::uint64_t seed, std::size_t count) {
  Random random{seed};
  std::string bytes;
  // Some bytes more often than others, so that pairs come again.
  while (bytes.size() < count) {
    bytes += random.coin() ? static_cast<char>(random.below(256)) : " ab\n"[random.below(4)];
  }
  return bytes;
}

TEST(DataBpe, AnyBytesComeBack) {
  const std::string text = any_bytes(1, 20'000);
  for (const std::int64_t vocabulary : {256, 257, 300, 1000}) {
    const Bpe bpe = Bpe::train(text, vocabulary);
    EXPECT_EQ(bpe.size(), vocabulary);
    const Bpe read = Bpe::from_json(bpe.to_json(), "test");
    // Of the text that it was trained on, and of others.
    for (const std::string& some :
         {text, any_bytes(2, 5'000), std::string(), std::string("\0\0", 2), std::string(500, '='),
          std::string(300, ' ') + "x"}) {
      const auto tokens = bpe.encode(some);
      EXPECT_EQ(bpe.decode(tokens), some);
      EXPECT_EQ(read.encode(some), tokens);
      EXPECT_EQ(read.decode(tokens), some);
    }
  }
}

TEST(DataBpe, MergesTheMostFrequentPair) {
  // " the" comes three times: of its pairs that of the smallest numbers is first.
  const Bpe bpe = Bpe::train("a the the the xy xy", 258);
  EXPECT_EQ(bpe.bytes_of(256), " t");
  EXPECT_EQ(bpe.bytes_of(257), "he");
  EXPECT_EQ(bpe.encode(" then"), (std::vector<std::int32_t>{256, 257, 'n'}));
  // A pair that comes once is not learned.
  EXPECT_EQ(Bpe::train("abc", 1000).size(), 256);
  // Words, numbers and punctuation stay apart, and a space belongs to what follows.
  const Bpe apart = Bpe::train("a-1 a-1 a-1 a-1", 1000);
  EXPECT_EQ(apart.size(), 257);
  EXPECT_EQ(apart.bytes_of(256), " a");
}

/// What training does, by the definition: all pairs are counted again for each merge.
std::vector<std::string> slowly_trained(const std::string& text, std::size_t vocabulary) {
  const Bpe bytes;
  std::vector<std::vector<std::int32_t>> pieces;
  // Pieces of this text are words with the space before them.
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t end = std::min(text.find(' ', i + 1), text.size());
    pieces.push_back(bytes.encode(text.substr(i, end - i)));
    i = end;
  }
  std::vector<std::string> learned;
  while (256 + learned.size() < vocabulary) {
    std::map<std::pair<std::int32_t, std::int32_t>, int> counts;
    for (const auto& piece : pieces) {
      for (std::size_t i = 0; i + 1 < piece.size(); ++i) ++counts[{piece[i], piece[i + 1]}];
    }
    auto best = counts.begin();
    for (auto it = counts.begin(); it != counts.end(); ++it) {
      if (it->second > best->second) best = it;
    }
    if (best == counts.end() || best->second < 2) break;
    const auto text_of = [&](std::int32_t token) {
      return token < 256 ? std::string(1, static_cast<char>(token))
                         : learned[static_cast<std::size_t>(token - 256)];
    };
    const auto token = static_cast<std::int32_t>(256 + learned.size());
    learned.push_back(text_of(best->first.first) + text_of(best->first.second));
    for (auto& piece : pieces) {
      std::vector<std::int32_t> merged;
      for (std::size_t i = 0; i < piece.size(); ++i) {
        const bool both = i + 1 < piece.size() && piece[i] == best->first.first &&
                          piece[i + 1] == best->first.second;
        merged.push_back(both ? token : piece[i]);
        i += both ? 1 : 0;
      }
      piece = merged;
    }
  }
  return learned;
}

TEST(DataBpe, IsWhatTheDefinitionSays) {
  Random random{7};
  std::string text;
  for (int i = 0; i < 3'000; ++i) {
    text += ' ';
    for (std::uint64_t n = random.below(6) + 1; n > 0; --n) {
      text += static_cast<char>('a' + random.below(4));
    }
  }
  const std::vector<std::string> expected = slowly_trained(text, 400);
  const Bpe bpe = Bpe::train(text, 400);
  ASSERT_EQ(bpe.size(), 256 + std::ssize(expected));
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(bpe.bytes_of(static_cast<std::int32_t>(256 + i)), expected[i]) << i;
  }
}

TEST(DataBpe, Refuses) {
  for (const std::int64_t bad : {0, 255, 65'537}) {
    expect_contains(error_text([&] { Bpe::train("a", bad); }),
                    {"invalid_argument", "vocabulary", std::to_string(bad)});
  }
  expect_contains(error_text([] { Bpe().decode({1, 256}); }), {"invalid_argument", "token 256"});
  expect_contains(error_text([] { Bpe().decode({-1}); }), {"invalid_argument", "token -1"});
  for (const char* bad :
       {"", "[]", "{}", R"({"format": "dgc bpe 2", "merges": []})",
        R"({"format": "dgc bpe 1", "merges": 3})", R"({"format": "dgc bpe 1", "merges": [[1]]})",
        R"({"format": "dgc bpe 1", "merges": [[1, 256]]})",
        R"({"format": "dgc bpe 1", "merges": [[1, -1]]})",
        R"({"format": "dgc bpe 1", "merges": [[1, "a"]]})"}) {
    expect_contains(error_text([&] { Bpe::from_json(bad, "v.json"); }), {"bad_state", "v.json"});
  }
  // A file of a few bytes does not become a token of many gigabytes.
  nlohmann::json merges = {{1, 1}};
  for (int i = 0; i < 60; ++i) merges.push_back({256 + i, 256 + i});
  expect_contains(
      error_text([&] {
        Bpe::from_json(nlohmann::json({{"format", "dgc bpe 1"}, {"merges", merges}}).dump(), "v");
      }),
      {"bad_state", "merge 6"});
}

TEST(DataPlainText, ReadsFilesAndSetsTheEndAside) {
  const Scratch folder;
  std::string lines;
  for (int i = 0; i < 40; ++i) lines += fmt::format("line {}\n", i);
  const auto all = folder.write("all", lines);
  const PlainText text = read_plain_text({all, {}, {}});
  EXPECT_EQ(text.test, "line 38\nline 39\n");
  EXPECT_EQ(text.valid, "line 36\nline 37\n");
  EXPECT_EQ(text.train + text.valid + text.test, lines);
  // Any bytes, as they are.
  const auto odd = folder.write("odd", "\xff\r\n \x01x");
  EXPECT_EQ(read_plain_text({all, odd, {}}).valid, "\xff\r\n \x01x");
  EXPECT_EQ(read_plain_text({all, odd, {}}).test, "line 38\nline 39\n");

  const std::string packed = (folder / "packed.gz").string();
  gzFile out = gzopen(packed.c_str(), "wb");
  gzwrite(out, lines.data(), static_cast<unsigned>(lines.size()));
  gzclose(out);
  EXPECT_EQ(read_plain_text({packed, {}, {}}).train, text.train);

  expect_contains(error_text([&] {
                    read_plain_text({folder.write("few", "a\nb\n"), {}, {}});
                  }),
                  {"io: ", "few", "2 lines are too few"});
  expect_contains(error_text([&] {
                    read_plain_text({all, folder.write("none", " \n"), {}});
                  }),
                  {"io: ", "none", "has no text"});
  expect_contains(error_text([&] {
                    read_plain_text({folder / "absent", {}, {}});
                  }),
                  {"io: ", "absent", "cannot open"});
}

TEST(DataPlainText, OfAFolderEvery20thFileIsSetAside) {
  const Scratch folder;
  for (int i = 0; i < 80; ++i) {
    folder.write(fmt::format("{}/{:02}.rst", i / 10, i), fmt::format("file {}\n====\n", i));
  }
  folder.write("0/picture.png", "no text");
  const PlainText text = read_plain_text({folder.path(), {}, {}});
  EXPECT_EQ(text.valid, "file 19\n\nfile 59\n\n");
  EXPECT_EQ(text.test, "file 39\n\nfile 79\n\n");
  EXPECT_TRUE(text.train.starts_with("file 0\n\nfile 1\n\n")) << text.train.substr(0, 40);
  EXPECT_EQ(text.train.find("no text"), std::string::npos);

  const PlainText given = read_plain_text({folder / "0", folder / "1", folder / "2"});
  EXPECT_TRUE(given.valid.starts_with("file 10\n"));
  expect_contains(error_text([&] {
                    read_plain_text({folder / "0", {}, {}});
                  }),
                  {"io: ", "10 .txt, .rst and .md files are too few"});
}

TEST(DataPlainText, MarkupIsTakenOff) {
  const char* const source =
      ".. SPDX-License-Identifier: GPL-2.0\n"
      ".. _label:\n"
      "\n"
      "=====\n"
      "Title\n"
      "=====\n"
      "\n\n\n"
      ".. toctree::\n"
      "   :maxdepth: 1\n"
      "\n"
      "See :ref:`the rules <rules>`, :doc:`x` and ``code *here``, **strongly** and *slightly*.\n"
      "A link: `page <http://a.b>`_. 2 * 3 * 4, char *p, a ratio 1:2:3::\n"
      "\n"
      "    int main(void) { return a->b; }\n"
      "\n"
      "+-----+----+\n"
      "| a   | b  |\n"
      "+=====+====+\n";
  EXPECT_EQ(without_markup(source),
            "Title\n\n"
            "See the rules, x and code *here, strongly and slightly.\n"
            "A link: page. 2 * 3 * 4, char *p, a ratio 1:2:3:\n"
            "\n"
            "    int main(void) { return a->b; }\n"
            "\n"
            "| a   | b  |\n\n");
  EXPECT_EQ(without_markup(""), "");
}

TEST(DataPlainText, LinuxDocLeavesTranslationsOut) {
  const Scratch folder;
  for (int i = 0; i < 40; ++i) folder.write(fmt::format("a/{:02}.rst", i), "English\n");
  folder.write("translations/zh/a.rst", "other\n");
  folder.write("devicetree/bindings/a.txt", "other\n");
  folder.write("devicetree/usage.rst", "usage\n");
  const PlainText text = read_linux_doc(folder.path());
  EXPECT_EQ((text.train + text.valid + text.test).find("other"), std::string::npos);
  EXPECT_NE(text.train.find("usage"), std::string::npos);
  expect_contains(error_text([&] { read_linux_doc(folder / "none"); }),
                  {"io: ", "none", "apt-get install linux-doc"});
}

TEST(DataPlainText, Bible) {
  if (!std::filesystem::exists("/usr/bin/bible")) GTEST_SKIP() << "bible-kjv is not installed";
  const PlainText text = read_plain_bible();
  EXPECT_TRUE(text.train.starts_with("In the beginning God created the heaven and the earth.\n"));
  const auto lines = [](const std::string& part) {
    return std::count(part.begin(), part.end(), '\n');
  };
  EXPECT_EQ(lines(text.train) + lines(text.valid) + lines(text.test), 31'102);
  EXPECT_EQ(lines(text.valid), 31 * 50);
  const Bpe bpe = Bpe::train(text.train, 1024);
  const auto tokens = bpe.encode(text.valid);
  EXPECT_EQ(bpe.decode(tokens), text.valid);
  EXPECT_LT(tokens.size(), text.valid.size() / 3);
}

}  // namespace
}  // namespace dgc::data
