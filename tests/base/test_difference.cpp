#include "base/difference.h"

#include <gtest/gtest.h>

#include <vector>

namespace dgc {
namespace {

std::string text_of(const std::vector<std::string>& texts) {
  const auto difference = first_difference(texts);
  return difference ? std::to_string(difference->rank) + " " + difference->text() : "";
}

TEST(Difference, IsTheFirstLineOfTheLowestRank) {
  EXPECT_EQ(text_of({"a\nb\n"}), "");
  EXPECT_EQ(text_of({"a\nb\n", "a\nb\n", "a\nb\n"}), "");
  EXPECT_EQ(text_of({"a\nb\nc\n", "a\nb\nc\n", "a\nx\ny\n", "z\nb\nc\n"}),
            "2 has 'x' where rank 0 has 'b'");
  EXPECT_EQ(text_of({"a\nb\n", "a\n"}), "1 has 'nothing more' where rank 0 has 'b'");
  EXPECT_EQ(text_of({"a", "a\nb"}), "1 has 'b' where rank 0 has 'nothing more'");
  EXPECT_EQ(text_of({"", "a"}), "1 has 'a' where rank 0 has 'nothing more'");
  // Nothing that a reader could see.
  EXPECT_EQ(text_of({"a", "a\n"}), "");
}

}  // namespace
}  // namespace dgc
