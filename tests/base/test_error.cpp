#include "dgc/error.h"

#include <gtest/gtest.h>

#include <fstream>
#include <regex>

namespace dgc {
namespace {

// The list is made by hand: it has to have what the header has, in the same order.
TEST(ErrorCodes, AreThoseOfTheHeader) {
  std::ifstream header(DGC_ERROR_HEADER);
  ASSERT_TRUE(header);
  std::vector<std::pair<std::string, int>> expected;
  const std::regex enumerator(R"(^  (\w+) = (\d+),.*)");
  std::smatch match;
  for (std::string line; std::getline(header, line);) {
    if (std::regex_match(line, match, enumerator)) {
      expected.emplace_back(match[1], std::stoi(match[2]));
    }
  }
  std::vector<std::pair<std::string, int>> actual;
  int last = -1;
  for (const ErrorCode code : error_codes()) {
    actual.emplace_back(error_name(code), static_cast<int>(code));
    EXPECT_EQ(error_code_named(error_name(code)), code);
    EXPECT_LT(last, static_cast<int>(code));
    last = static_cast<int>(code);
  }
  EXPECT_GT(actual.size(), 30u);
  EXPECT_EQ(actual, expected);
  EXPECT_EQ(error_name(static_cast<ErrorCode>(10)), "unknown");
  EXPECT_EQ(error_code_named("unknown"), std::nullopt);
}

}  // namespace
}  // namespace dgc
