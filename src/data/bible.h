// The King James Bible as Debian's bible-kjv prints it: English text that apt brings, of PTB's
// size.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/text.h"

namespace dgc::data {

/// Verses without their references, as printed. Of every 20 blocks of 50 verses the 10th is
/// validation text and the 20th test text, so that each has all kinds of books.
struct BibleParts {
  std::vector<std::string> train, valid, test;
};
/// Runs the program `bible`. Errors: io when it is not installed or prints anything else than
/// 31,102 verses.
BibleParts read_bible();

/// 31,102 verses, one per line, without their references, lower-cased. As words, every punctuation
/// mark but an apostrophe or hyphen inside a word is a word of its own (944,477 tokens with
/// "<eos>"); as characters, the text is as printed. Parts and errors: as read_bible.
Corpus load_bible(TextUnit unit, std::int64_t max_vocabulary = 0);

}  // namespace dgc::data
