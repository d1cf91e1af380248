// Text for language models: three streams of token numbers, and what the numbers mean.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace dgc::data {

enum class TextUnit { words, characters };

struct Corpus {
  std::vector<std::string> vocabulary;           ///< token i reads vocabulary[i]
  std::vector<std::int32_t> train, valid, test;  ///< token numbers, none of them empty
};

/// `valid` and `test` may be empty: then the last twentieth of the lines of `train` is the test
/// text, and the twentieth before it the validation text (if only one is empty, the last twentieth
/// is that one).
struct TextFiles {
  std::filesystem::path train, valid, test;
};

/// The same, in memory: one string per line, valid UTF-8.
struct TextLines {
  std::vector<std::string_view> train, valid, test;
};

/// The way PTB is read. Words: what is between white space, and "<eos>" after each line.
/// Characters: the code points of each line without the white space at its ends, and "\n" after it.
/// The vocabulary is that of the train text, by falling frequency, equals by first appearance;
/// all else becomes "<unk>", which is always in the vocabulary (last, if the train text does not
/// have it). With max_vocabulary > 0 only so many tokens are kept, "<unk>" among them.
/// Errors: io for a file that cannot be read, is empty or is not UTF-8 (file and line named), and
/// for too few lines to set some aside; invalid_argument for a max_vocabulary that is negative
/// or 1.
Corpus load_text(const TextFiles& files, TextUnit unit, std::int64_t max_vocabulary = 0);

/// ptb.{train,valid,test}.txt in `folder` or in its simple-examples/data. Words: 929,589 / 73,760 /
/// 82,430 tokens, vocabulary 10,000. Errors as load_text.
Corpus load_ptb(const std::filesystem::path& folder, TextUnit unit);

/// What load_text makes of lines; `max_vocabulary` as there.
Corpus make_corpus(const TextLines& lines, TextUnit unit, std::int64_t max_vocabulary = 0);

}  // namespace dgc::data
