// Text as bytes, for models that read bytes or byte pairs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "data/text.h"

namespace dgc::data {

struct PlainText {
  std::string train, valid, test;  ///< none of them empty
};

/// Files with any bytes, gzipped or not; or folders, of which all .txt, .rst and .md files are read
/// (.gz after it or not), in the order of their paths, without markup. `valid` and `test` may be
/// empty: then the last twentieth of the lines of `train` is the test text, and the twentieth
/// before it the validation text (if only one is empty, the last twentieth is that one). Of a
/// folder, every 40th file is test text and the 20th before it validation text. Errors: io, naming
/// the file, also for one that is empty, and for too little text to set some aside.
PlainText read_plain_text(const TextFiles& files);

/// The King James Bible as Debian's bible-kjv prints it, without references; the parts are those of
/// load_bible. Errors: as there.
PlainText read_plain_bible();

/// Debian's linux-doc: what its authors wrote, in English, without markup, translations and
/// bindings of devices, about 20 MB. `folder` is its Documentation. Errors: io.
PlainText read_linux_doc(const std::filesystem::path& folder);

/// reStructuredText as a reader sees it: without directives and their options, lines under titles,
/// frames of tables, marks of roles, code and emphasis. Other text stays as it is.
std::string without_markup(std::string_view text);

}  // namespace dgc::data
