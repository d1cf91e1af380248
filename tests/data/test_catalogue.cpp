// Which data sets there are, where they are found, and what a check finds wrong with them.
#include "data/catalogue.h"

#include <algorithm>
#include <set>

#include "data/check.h"
#include "support/data_files.h"

namespace dgc::data {
namespace {

using test::Bytes;
using test::expect_error;
using test::idx_bytes;
using test::jpeg_bytes;
using test::plain;
using test::write_file;
using test::write_text;
namespace fs = std::filesystem;

/// Sets DGC_DATA (or, with an empty value, removes it) until the end of the test.
class Environment {
 public:
  explicit Environment(const std::string& value) {
    const char* const before = std::getenv("DGC_DATA");
    if (before != nullptr) before_ = before;
    set(value);
  }
  ~Environment() { set(before_); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  static void set(const std::string& value) {
    value.empty() ? ::unsetenv("DGC_DATA") : ::setenv("DGC_DATA", value.c_str(), 1);
  }
  std::string before_;
};

class Catalogue : public test::DataFolder {};

TEST_F(Catalogue, SaysHowToGetEverySet) {
  std::set<std::string> names;
  std::set<std::string> recipes;
  for (const DataSet& set : catalogue()) {
    EXPECT_TRUE(names.insert(set.name).second) << set.name;
    recipes.insert(set.recipes.begin(), set.recipes.end());
    for (const std::string& text : {set.what, set.size, set.how, set.licence})
      EXPECT_FALSE(text.empty()) << set.name;
    EXPECT_TRUE(!set.page.empty() || !set.package.empty()) << set.name;
    EXPECT_EQ(set.package.empty(), set.places.empty()) << set.name;
    if (!set.package.empty()) {
      EXPECT_EQ(set.how, "apt-get install " + set.package);
    }
    for (const DataArchive& archive : set.archives) EXPECT_EQ(archive.md5.size(), 32u);
  }
  EXPECT_EQ(recipes, (std::set<std::string>{"fashion", "text", "speech", "cifar10", "ptb", "an4",
                                            "librispeech", "imagenet", "gpt"}));
}

TEST_F(Catalogue, LooksWhereItSays) {
  const Environment environment(folder().string());
  expect_error(ErrorCode::io,
               {"cifar10", (folder() / "cifar10").string(), "cifar-10-binary.tar.gz"},
               [] { find_data("cifar10"); });
  EXPECT_FALSE(find_data_quietly("cifar10"));
  fs::create_directory(folder() / "cifar10");
  EXPECT_EQ(find_data("cifar10"), folder() / "cifar10");
  EXPECT_EQ(find_data_quietly("cifar10"), folder() / "cifar10");
  // A folder that was named wins, and must be there.
  EXPECT_EQ(find_data("cifar10", folder()), folder());
  expect_error(ErrorCode::io, {"elsewhere", "does not exist", "cifar10", "cifar-10-binary.tar.gz"},
               [&] { find_data("cifar10", folder() / "elsewhere"); });
  // One's own copy goes before the package's.
  fs::create_directory(folder() / "fashion-mnist");
  EXPECT_EQ(find_data("fashion-mnist"), folder() / "fashion-mnist");
}

TEST_F(Catalogue, WithoutDgcDataItSaysSo) {
  const Environment environment("");
  expect_error(ErrorCode::io, {"ptb", "DGC_DATA is not set", "simple-examples.tgz"},
               [] { find_data("ptb"); });
  const fs::path debian = "/usr/share/datasets/fashion-mnist";
  if (fs::exists(debian)) {
    EXPECT_EQ(find_data("fashion-mnist"), debian);
  } else {
    expect_error(ErrorCode::io, {debian.string(), "apt-get install"},
                 [] { find_data("fashion-mnist"); });
  }
}

TEST_F(Catalogue, MisspeltNamesGetTheNearest) {
  expect_error(ErrorCode::invalid_argument, {"cifar-10", "did you mean 'cifar10'?"},
               [] { find_data("cifar-10"); });
  EXPECT_THROW(find_data_quietly("imagnet"), Error);
}

class Check : public test::DataFolder {
 protected:
  /// What the check of the folder says; each expected text must be in a fact or problem of its own.
  CheckedData expect(const std::string& kind, const std::vector<std::string>& facts,
                     const std::vector<std::string>& problems) const {
    return expect(folder(), {}, kind, facts, problems);
  }
  static CheckedData expect(const fs::path& where, const CheckOptions& options,
                            const std::string& kind, const std::vector<std::string>& facts,
                            const std::vector<std::string>& problems) {
    CheckedData checked = check_data(where, options);
    EXPECT_EQ(checked.kind, kind);
    for (const std::string& text : facts) EXPECT_TRUE(has(checked.facts, text)) << text;
    for (const std::string& text : problems) EXPECT_TRUE(has(checked.problems, text)) << text;
    EXPECT_EQ(checked.problems.size(), problems.size());
    if (testing::Test::HasFailure())
      for (const auto* const lines : {&checked.facts, &checked.problems})
        for (const std::string& line : *lines) ADD_FAILURE() << "said: " << line;
    return checked;
  }

 private:
  static bool has(const std::vector<std::string>& lines, const std::string& text) {
    return std::any_of(lines.begin(), lines.end(), [&](const std::string& line) {
      return line.find(text) != std::string::npos;
    });
  }
};

TEST_F(Check, UnknownAndMissingFolders) {
  expect("unknown", {}, {"no data set that dgc knows"});
  expect_error(ErrorCode::io, {"nowhere", "no such folder"},
               [&] { check_data(folder() / "nowhere"); });
  write_text(folder() / "file", "x");
  expect_error(ErrorCode::io, {"not a folder"}, [&] { check_data(folder() / "file"); });
}

TEST_F(Check, IdxOfAnotherSet) {
  for (const std::string half : {"train", "t10k"}) {
    write_file(folder() / (half + "-images-idx3-ubyte"), idx_bytes(0x803, {2, 1, 1}, {5, 6}));
    write_file(folder() / (half + "-labels-idx1-ubyte"), idx_bytes(0x801, {2}, {0, 9}));
  }
  expect("IDX images", {"train: 2 images of 1 x 1 x 1", "test: 2 images", "not the files of MNIST"},
         {});
  write_file(folder() / "t10k-labels-idx1-ubyte", idx_bytes(0x801, {2}, {0, 10}));
  expect("IDX images", {"train: 2 images"}, {"label 10 of record 1"});
  fs::remove(folder() / "t10k-labels-idx1-ubyte");
  expect("IDX images", {"train: 2 images"}, {"has no t10k-labels-idx1-ubyte"});
}

TEST_F(Check, FashionMnistAndACopyWithOtherPixels) {
  const fs::path debian = "/usr/share/datasets/fashion-mnist";
  if (!fs::exists(debian)) GTEST_SKIP() << "dataset-fashion-mnist is not installed";
  expect(debian, {}, "Fashion-MNIST",
         {"train: 60,000 images", "test: 10,000 images", "all four files have the MD5s"}, {});
  for (const auto& entry : fs::directory_iterator(debian))
    fs::copy_file(entry.path(), folder() / entry.path().filename());
  Bytes pixels(7840000);
  fs::remove(folder() / "t10k-images-idx3-ubyte.gz");
  write_file(folder() / "t10k-images-idx3-ubyte", idx_bytes(0x803, {10000, 28, 28}, pixels));
  expect("Fashion-MNIST", {"test: 10,000 images"},
         {"t10k-images-idx3-ubyte: MD5 of the contents is"});
}

TEST_F(Check, ImagesAreDecodedUnlessQuick) {
  const Bytes whole = jpeg_bytes(40, 60, JCS_GRAYSCALE, plain(40, 60, {9}));
  for (const char* const name : {"train/a/1.jpg", "train/b/1.jpg", "val/a/1.jpg", "val/b/1.jpg"})
    write_file(folder() / name, whole);
  std::size_t calls = 0;
  const CheckOptions options{.quick = false, .progress = [&](std::size_t done, std::size_t total) {
                               EXPECT_EQ(done, ++calls);
                               EXPECT_EQ(total, 4u);
                             }};
  expect(folder(), options, "images by class",
         {"2 classes", "train: 2 images", "validation: 2 images", "sides of 40 to 60",
          "4 of 4 images can be decoded"},
         {});
  EXPECT_EQ(calls, 4u);
  // The end is missing: the header is still good.
  write_file(folder() / "train" / "b" / "1.jpg", Bytes(whole.begin(), whole.end() - 12));
  expect(folder(), {.quick = true}, "images by class", {"4 of 4 images have a good header"}, {});
  write_text(folder() / "val" / "a" / "1.jpg", "no JPEG");
  expect("images by class", {"2 of 4 images can be decoded"},
         {"train/b/1.jpg: unreadable JPEG", "val/a/1.jpg: unreadable JPEG"});
  expect(folder(), {.quick = true}, "images by class", {"3 of 4"}, {"val/a/1.jpg"});
  fs::create_directory(folder() / "train" / "c");
  expect("images by class", {}, {"class c has no JPEGs"});
}

TEST_F(Check, ArchivesAreComparedWithThePublishedDigests) {
  write_text(folder() / "dev-clean.tar.gz", "cut short");
  expect("unknown", {"nothing is unpacked"}, {"42e2234ba48799c1f50f24a7926300a1"});
  expect(folder(), {.quick = true}, "unknown", {"dev-clean.tar.gz is here"}, {});
}

TEST_F(Check, TextIsCounted) {
  write_text(folder() / "a.txt", "one two  three\nfour\n");
  write_text(folder() / "b.txt", " \n");
  expect("text", {"a.txt: 2 lines, 4 words, 20 bytes"}, {"b.txt: has no words"});
}

TEST_F(Check, RealSets) {
  struct Expected {
    const char* name;
    const char* kind;
    std::vector<std::string> facts;
  };
  const std::vector<Expected> sets = {
      {"cifar10", "CIFAR-10", {"train: 50,000 images of 3 x 32 x 32", "all files have the MD5s"}},
      {"ptb", "Penn Treebank", {"929,589 train", "vocabulary 10,000", "all files have the MD5s"}},
      {"an4", "AN4", {"test: as many utterances as AN4 has", "16,000 samples"}},
      {"tiny-imagenet-10", "images by class", {"10 classes", "5,500 of 5,500 images"}}};
  int checked = 0;
  for (const Expected& set : sets) {
    const auto where = test::real_data(set.name);
    if (!where) continue;
    SCOPED_TRACE(set.name);
    expect(*where, {.quick = true}, set.kind, set.facts, {});
    ++checked;
  }
  if (const auto where = test::real_data("mini_librispeech_sample")) {
    expect(*where, {}, "LibriSpeech", {"16,000 samples"},
           {"train-clean-5: 38 utterances; LibriSpeech has 1,519"});
    ++checked;
  }
  if (checked == 0) GTEST_SKIP() << "none of the sets is in $DGC_DATA";
}

}  // namespace
}  // namespace dgc::data
