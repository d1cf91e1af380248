// Every instruction set computes the bits of the scalar kernels.
#include "compress/kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "support/helpers.h"

namespace dgc::compress {
namespace {

using test::same_bits;

std::vector<TargetKernels> vector_tables() {
  std::vector<TargetKernels> tables(8);
  tables.resize(vector_kernels(tables.data(), tables.size()));
  return tables;
}

struct Arrays {
  std::vector<float> g, u, v;
};

Arrays random_arrays(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> sample;
  Arrays arrays{std::vector<float>(count), std::vector<float>(count), std::vector<float>(count)};
  for (std::size_t i = 0; i < count; ++i) {
    arrays.g[i] = sample(random);
    arrays.u[i] = random() % 7 == 0 ? 1e-38f * sample(random) : sample(random);
    arrays.v[i] = random() % 5 == 0 ? 0.0f : sample(random);
  }
  return arrays;
}

/// What a kernel writes entries to.
struct Output {
  explicit Output(std::size_t count)
      : indices(count + kSlack), values(count + kSlack), velocities(count + kSlack) {}
  EntryArrays arrays(bool with_velocities) {
    return {indices.data(), values.data(), with_velocities ? velocities.data() : nullptr};
  }

  std::vector<std::uint32_t> indices;
  std::vector<float> values;
  std::vector<float> velocities;
};

void expect_same(const Output& expected, const Output& actual, std::size_t count,
                 bool with_velocities) {
  for (std::size_t i = 0; i < count; ++i) {
    ASSERT_EQ(expected.indices[i], actual.indices[i]);
    ASSERT_EQ(magnitude_bits(expected.values[i]), magnitude_bits(actual.values[i]));
    if (with_velocities) {
      ASSERT_EQ(expected.velocities[i], actual.velocities[i]);
    }
  }
}

/// Entries that reach twice the threshold are sure.
void expect_same(const Kernels& ours, Rule rule, const Arrays& input, float threshold,
                 bool masking) {
  const std::size_t count = input.g.size();
  Arrays expected = input;
  Arrays actual = input;
  Output expected_out(count);
  Output actual_out(count);
  const bool with_u = masking && has_velocity(rule);
  const auto block = [&](Arrays& a) {
    return Accumulate{a.g.data(),
                      a.u.data(),
                      a.v.data(),
                      count,
                      0.25f,
                      0.9f,
                      std::max<std::uint32_t>(1, magnitude_bits(threshold)),
                      std::max<std::uint32_t>(1, magnitude_bits(2.0f * threshold)),
                      1000};
  };
  const int r = static_cast<int>(rule);
  const Accumulated want =
      scalar_kernels().accumulate[r](block(expected), expected_out.arrays(with_u));
  const Accumulated got = ours.accumulate[r](block(actual), actual_out.arrays(with_u));
  EXPECT_EQ(want.candidates, got.candidates);
  EXPECT_EQ(want.first_nonfinite, got.first_nonfinite);
  EXPECT_TRUE(same_bits(expected.u, actual.u));
  EXPECT_TRUE(same_bits(expected.v, actual.v));
  expect_same(expected_out, actual_out, want.candidates, with_u);

  // What was taken out, put back, is what is left of a pass that takes nothing out.
  Arrays whole = input;
  Output all(count);
  Accumulate nothing = block(whole);
  nothing.sure = kNoCandidates;
  scalar_kernels().accumulate[r](nothing, all.arrays(with_u));
  for (std::size_t i = 0; i < got.candidates; ++i) {
    const std::size_t at = actual_out.indices[i] - 1000;
    if (magnitude_bits(actual_out.values[i]) < block(actual).sure) continue;
    EXPECT_EQ(actual.v[at], 0.0f);
    actual.v[at] = actual_out.values[i];
    if (!with_u) continue;
    EXPECT_EQ(actual.u[at], 0.0f);
    actual.u[at] = actual_out.velocities[i];
  }
  EXPECT_TRUE(same_bits(whole.u, actual.u));
  EXPECT_TRUE(same_bits(whole.v, actual.v));

  const std::uint32_t bits = magnitude_bits(threshold) + 1;
  const std::size_t want_found = scalar_kernels().collect(
      expected.u.data(), expected.v.data(), count, bits, 5, expected_out.arrays(with_u));
  const std::size_t got_found =
      ours.collect(expected.u.data(), expected.v.data(), count, bits, 5, actual_out.arrays(with_u));
  ASSERT_EQ(want_found, got_found);
  expect_same(expected_out, actual_out, want_found, with_u);

  Output want_picked(count);
  Output got_picked(count);
  const std::uint32_t beyond = magnitude_bits(1.5f * threshold) + 1;
  for (const std::uint32_t end : {beyond, kNoCandidates}) {
    const std::size_t want_count = scalar_kernels().pick(all.arrays(with_u), want.candidates, bits,
                                                         end, want_picked.arrays(with_u));
    const std::size_t got_count =
        ours.pick(all.arrays(with_u), want.candidates, bits, end, got_picked.arrays(with_u));
    ASSERT_EQ(want_count, got_count);
    expect_same(want_picked, got_picked, want_count, with_u);
  }

  double want_lanes[kNormLanes] = {};
  double got_lanes[kNormLanes] = {};
  scalar_kernels().add_squares(expected.v.data(), count, want_lanes);
  ours.add_squares(expected.v.data(), count, got_lanes);
  for (std::size_t i = 0; i < kNormLanes; ++i) EXPECT_EQ(want_lanes[i], got_lanes[i]);
}

TEST(Kernels, VectorEqualsScalarForAllSizes) {
  for (const TargetKernels& table : vector_tables()) {
    if (!table.supported) {
      GTEST_LOG_(INFO) << table.kernels->name << " cannot run on this machine: untested";
      continue;
    }
    SCOPED_TRACE(table.kernels->name);
    for (const std::size_t count :
         {0, 1, 2, 3, 7, 15, 16, 31, 32, 33, 63, 64, 65, 127, 128, 1000, 4096}) {
      SCOPED_TRACE(count);
      const Arrays arrays = random_arrays(count, static_cast<std::uint32_t>(count));
      for (const Rule rule : kRules) {
        for (const float threshold : {0.0f, 0.5f, 2.5f, 100.0f}) {
          expect_same(*table.kernels, rule, arrays, threshold, true);
          expect_same(*table.kernels, rule, arrays, threshold, false);
        }
      }
    }
  }
}

TEST(Kernels, NonFiniteGradientsCountAsZeroAndTheFirstIsReported) {
  for (const TargetKernels& table : vector_tables()) {
    if (!table.supported) continue;
    SCOPED_TRACE(table.kernels->name);
    for (const std::size_t at : {0, 1, 63, 64, 100, 255, 299}) {
      Arrays arrays = random_arrays(300, 3);
      arrays.g[at] = std::numeric_limits<float>::quiet_NaN();
      arrays.g[299] = -std::numeric_limits<float>::infinity();
      expect_same(*table.kernels, Rule::heavy_ball, arrays, 1.0f, true);
      Output out(300);
      const Accumulated got =
          table.kernels->accumulate[1]({arrays.g.data(), arrays.u.data(), arrays.v.data(), 300,
                                        1.0f, 0.9f, kNoCandidates, kNoCandidates, 0},
                                       out.arrays(true));
      EXPECT_EQ(got.first_nonfinite, at);
      EXPECT_EQ(got.candidates, 0u);
      for (const float x : arrays.v) EXPECT_TRUE(std::isfinite(x));
      for (const float x : arrays.u) EXPECT_TRUE(std::isfinite(x));
    }
  }
}

TEST(Kernels, DecayedVelocityBecomesZero) {
  float g = 0.0f;
  float u = 1e-38f;
  float v = 0.0f;
  Output out(1);
  for (int step = 0; step < 3; ++step) {
    scalar_kernels().accumulate[1]({&g, &u, &v, 1, 1.0f, 0.9f, kNoCandidates, kNoCandidates, 0},
                                   out.arrays(true));
  }
  EXPECT_EQ(u, 0.0f);
  EXPECT_GT(v, 0.0f);  // what it still carried has arrived in the residual
}

// Whoever computes the rule in another way compares with accumulate(), bit for bit: also where
// velocities fall out of the normal range.
TEST(UpdateRule, IsThatOfEveryKernelForDenormals) {
  constexpr std::size_t kCount = 1000;
  constexpr float kTiny = std::numeric_limits<float>::min();
  std::vector<TargetKernels> tables = vector_tables();
  tables.push_back({&scalar_kernels(), true});
  for (const TargetKernels& table : tables) {
    if (!table.supported) continue;
    for (const Rule rule : kRules) {
      Arrays expected = random_arrays(kCount, 3);
      for (std::size_t i = 0; i < kCount; ++i) {
        expected.u[i] *= 4.0f * kTiny;
        expected.g[i] *= i % 3 == 0 ? 0.0f : kTiny;
        if (i % 2 == 0) expected.v[i] *= kTiny;
      }
      Arrays actual = expected;
      Output out(kCount);
      std::size_t dropped = 0;
      for (int step = 0; step < 20; ++step) {
        accumulate(rule, expected.g, expected.u, expected.v, 0.5f, 0.9f);
        table.kernels->accumulate[static_cast<int>(rule)](
            {actual.g.data(), actual.u.data(), actual.v.data(), kCount, 0.5f, 0.9f, kNoCandidates,
             kNoCandidates, 0},
            out.arrays(has_velocity(rule)));
        ASSERT_TRUE(same_bits(expected.u, actual.u)) << table.kernels->name;
        ASSERT_TRUE(same_bits(expected.v, actual.v)) << table.kernels->name;
        for (const float x : rule == Rule::decayed ? expected.v : expected.u) {
          ASSERT_TRUE(rule == Rule::plain || x == 0.0f || std::fabs(x) >= kTiny);
          dropped += x == 0.0f;
        }
      }
      EXPECT_TRUE(rule == Rule::plain || dropped > kCount);
    }
  }
}

TEST(Target, EnvironmentChoosesAndBadValuesAreErrors) {
  ASSERT_EQ(::setenv("DGC_TARGET", "scalar", 1), 0);
  EXPECT_EQ(active_target(), "scalar");
  ASSERT_EQ(::setenv("DGC_TARGET", "avx1024", 1), 0);
  try {
    active_target();
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unsupported_target);
    EXPECT_NE(std::string(error.what()).find("scalar"), std::string::npos)
        << "the choices are listed";
  }
  ASSERT_EQ(::unsetenv("DGC_TARGET"), 0);
  EXPECT_EQ(targets().back().name, "scalar");
}

}  // namespace
}  // namespace dgc::compress
