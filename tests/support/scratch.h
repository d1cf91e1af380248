// A folder for a test's files that goes away with the test, and what an Error says.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <string_view>

#include "base/temporary_folder.h"
#include "dgc/error.h"

namespace dgc::test {

class Scratch : public TemporaryFolder {
 public:
  std::filesystem::path write(const std::string& name, std::string_view contents) const {
    const std::filesystem::path file = path() / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream stream(file, std::ios::binary);
    stream.write(contents.data(), static_cast<std::streamsize>(contents.size()));
    if (!stream.flush()) throw std::runtime_error("cannot write " + file.string());
    return file;
  }
};

/// "code: what()" of the Error that `work` throws; "" if it throws none.
inline std::string error_text(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return std::string(error_name(error.code())) + ": " + error.what();
  }
  return {};
}

inline void expect_contains(std::string_view text, std::initializer_list<std::string_view> parts) {
  for (const std::string_view part : parts) {
    EXPECT_NE(text.find(part), std::string_view::npos) << part << "\n  is not in\n" << text;
  }
}

/// A folder of $DGC_DATA, or "" if there is none.
inline std::filesystem::path published_data(const char* name) {
  const char* const folder = std::getenv("DGC_DATA");
  if (folder == nullptr) return {};
  const std::filesystem::path path = std::filesystem::path(folder) / name;
  return std::filesystem::exists(path) ? path : std::filesystem::path();
}

}  // namespace dgc::test
