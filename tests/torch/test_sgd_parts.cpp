// Parts of dgc::Sgd that need no libtorch.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "compress/decay.h"
#include "exchange/sampled_norm.h"
#include "torch/bucket_plan.h"

namespace dgc::sgd {
namespace {

TEST(Buckets, LastParametersFirstNeighboursTogether) {
  const std::vector<std::uint64_t> bytes = {100, 10, 10, 300, 10};
  EXPECT_EQ(plan_buckets(bytes, 110), (Buckets{{4}, {3}, {1, 2}, {0}}));
  EXPECT_EQ(plan_buckets(bytes, 120), (Buckets{{4}, {3}, {0, 1, 2}}));
  EXPECT_EQ(plan_buckets(bytes, 1), (Buckets{{4}, {3}, {2}, {1}, {0}}));
  EXPECT_EQ(plan_buckets(bytes, 1000), (Buckets{{0, 1, 2, 3, 4}}));
  EXPECT_TRUE(plan_buckets({}, 10).empty());
}

TEST(Decay, IsTheMomentumOfWeightDecayAlone) {
  for (const bool nesterov : {false, true}) {
    std::vector<float> w = {1.0f, -2.0f};
    std::vector<float> buffer = {0.0f, 0.0f};
    double x = 1.0;
    double momentum = 0.0;
    for (int step = 0; step < 10; ++step) {
      const double g = 0.1 * x;
      momentum = 0.9 * momentum + g;
      x -= 0.5 * (nesterov ? g + 0.9 * momentum : momentum);
      apply_decay({.weight_decay = 0.1f, .lr = 0.5f, .momentum = 0.9f, .nesterov = nesterov}, w,
                  buffer);
      EXPECT_NEAR(w[0], x, 1e-6) << nesterov << step;
      EXPECT_NEAR(w[1], -2.0 * x, 2e-6);
    }
  }
  std::vector<float> w = {1.0f};
  apply_decay({.weight_decay = 0.1f, .lr = 0.5f, .momentum = 0.0f, .nesterov = false}, w, {});
  EXPECT_FLOAT_EQ(w[0], 0.95f);
}

TEST(SampledNorm, IsExactWhenSmallAndCloseWhenLarge) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> values(3'000'000);
  double squares = 0.0;
  // Rows of 1024 of which a few columns are hot: a fixed stride would miss or hit them all.
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = normal(random) * (i % 1024 < 64 ? 10.0f : 1.0f);
    squares += static_cast<double>(values[i]) * values[i];
  }
  double mean = 0.0;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const double ratio = exchange::sampled_squares(values, seed) / squares;
    EXPECT_NEAR(ratio, 1.0, 0.3) << seed;  // one sample has a standard deviation of 0.06 here
    mean += ratio / 20;
  }
  EXPECT_NEAR(mean, 1.0, 0.05);
  const std::span<const float> small = std::span(values).first(65'536);
  double exact = 0.0;
  for (const float x : small) exact += static_cast<double>(x) * x;
  EXPECT_DOUBLE_EQ(exchange::sampled_squares(small, 5), exact);
  EXPECT_EQ(exchange::sampled_squares({}, 5), 0.0);
}

}  // namespace
}  // namespace dgc::sgd
