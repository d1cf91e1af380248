// Hub and members together, on a clock and links that are computed.
#include "toy.h"

namespace dgc {
namespace {

using test::Toy;
using test::ToyPlan;

TEST(LocalHub, MembersTrainTogetherToTheEnd) {
  Toy toy({});
  for (const char* name : {"a", "b", "c"}) toy.join(name, toy.worker());
  ASSERT_TRUE(toy.finish());
  EXPECT_EQ(toy.local->hub()->leases()->done(), 4 * 960);
  EXPECT_EQ(toy.local->hub()->round(), toy.lines.size());
  EXPECT_LT(toy.distance(), 0.1);
  for (const auto& line : toy.lines) EXPECT_LE(line.members, 3u);
}

}  // namespace
}  // namespace dgc
