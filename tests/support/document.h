// The worked examples of the documents, for tests that hold the code to them.
#pragma once

#include <cstddef>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace dgc::test {

/// The bytes in the blocks of a document that begin with "```hex".
inline std::vector<std::byte> hex_in_document(const std::string& file) {
  std::ifstream document(file);
  std::vector<std::byte> bytes;
  std::string line;
  bool inside = false;
  while (std::getline(document, line)) {
    if (line.starts_with("```")) {
      inside = line == "```hex";
      continue;
    }
    std::istringstream words(line);
    std::string word;
    while (inside && words >> word) {
      bytes.push_back(static_cast<std::byte>(std::stoul(word, nullptr, 16)));
    }
  }
  return bytes;
}

}  // namespace dgc::test
