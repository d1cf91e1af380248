#include "exchange/presence.h"

#include <gtest/gtest.h>

#include "support/ranks.h"

namespace dgc::exchange {
namespace {

using test::run_ranks;

TEST(Presence, IsWhatAnyRankHas) {
  for (const int ranks : {1, 2, 5}) {
    const auto errors = run_ranks(ranks, std::chrono::seconds(5), [&](Group& group) {
      // Tensor r is present on rank r alone, the last on nobody.
      Presence mine{.step = 7, .bucket = 2, .present = std::vector<bool>(20)};
      mine.present[static_cast<std::size_t>(group.rank())] = true;
      mine.nonfinite = group.rank() == 3;
      mine.stop = group.rank() == 1;
      const Presence all = share_presence(group, mine);
      for (int t = 0; t < 20; ++t) EXPECT_EQ(all.present[static_cast<std::size_t>(t)], t < ranks);
      EXPECT_EQ(all.nonfinite, ranks > 3);
      EXPECT_EQ(all.stop, ranks > 1);
    });
    for (const auto& error : errors) EXPECT_FALSE(error) << error->what();
  }
}

TEST(Presence, RanksOutOfStepAreNamed) {
  for (const bool other_step : {true, false}) {
    const auto errors = run_ranks(3, std::chrono::seconds(5), [&](Group& group) {
      const bool odd = group.rank() == 2;
      share_presence(group, {.step = odd && other_step ? 8u : 7u,
                             .bucket = odd && !other_step ? 1u : 0u,
                             .present = std::vector<bool>(3)});
    });
    for (const auto& error : errors) {
      ASSERT_TRUE(error);
      EXPECT_EQ(error->code(), ErrorCode::configuration_mismatch);
    }
    EXPECT_EQ(errors[0]->subject(), "rank 2");
    EXPECT_EQ(errors[1]->subject(), "rank 2");
  }
}

}  // namespace
}  // namespace dgc::exchange
