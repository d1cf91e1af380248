#include "dgc/compressor.h"

#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <memory>
#include <numeric>

#include "compress/internals.h"
#include "support/helpers.h"

namespace dgc {
namespace {

using test::code_of;
using test::same_bits;
using test::Tensors;
using test::Worker;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// Algorithm 4 of the paper, one element after the other. Returns what is sent, in place of v.
struct Reference {
  float m;
  float decay;
  bool nesterov;
  bool masking;
  std::vector<float> u, v;

  Reference(std::size_t n, const CompressOptions& o)
      : m(o.momentum),
        decay(o.residual_decay),
        nesterov(o.nesterov),
        masking(o.masking),
        u(n, 0.0f),
        v(n, 0.0f) {}

  std::vector<float> step(const std::vector<float>& gradient, float scale, std::size_t k) {
    const std::size_t n = v.size();
    for (std::size_t i = 0; i < n; ++i) {
      const float g = gradient[i] * scale;
      if (m == 0.0f && decay != 1.0f) {
        v[i] = decay * v[i] + g;
        if (std::fabs(v[i]) < FLT_MIN) v[i] = 0.0f;
      } else if (m == 0.0f) {
        v[i] = v[i] + g;
      } else if (nesterov) {
        u[i] = m * (u[i] + g);
        v[i] = (v[i] + u[i]) + g;
      } else {
        u[i] = m * u[i] + g;
        v[i] = v[i] + u[i];
      }
      if (std::fabs(u[i]) < FLT_MIN) u[i] = 0.0f;
    }
    std::vector<std::size_t> order(n);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return std::fabs(v[a]) > std::fabs(v[b]);
    });
    std::vector<float> sent(n, 0.0f);
    for (std::size_t j = 0; j < k; ++j) {
      const std::size_t i = order[j];
      sent[i] = std::exchange(v[i], 0.0f);
      if (masking && k < n && sent[i] != 0.0f) u[i] = 0.0f;
    }
    return sent;
  }
};

struct Variant {
  const char* name;
  float momentum;
  bool nesterov;
  bool masking;
  float decay = 1.0f;
};
const Variant kDecayed = {"decayed", 0.0f, false, false, 0.95f};
const Variant kMasked[] = {{"heavy_ball", 0.9f, false, true}, {"nesterov", 0.9f, true, true}};
const Variant kUnmasked[] = {{"plain", 0.0f, false, false},
                             {"heavy_ball_unmasked", 0.9f, false, false},
                             {"nesterov_unmasked", 0.9f, true, false}};

void PrintTo(const Variant& variant, std::ostream* out) { *out << variant.name; }
std::string name_of_variant(const testing::TestParamInfo<Variant>& info) { return info.param.name; }

CompressOptions options_of(const Variant& variant, double ratio) {
  CompressOptions options;
  options.schedule = Schedule(ratio);
  options.momentum = variant.momentum;
  options.nesterov = variant.nesterov;
  options.masking = variant.masking;
  options.residual_decay = variant.decay;
  return options;
}

class VariantTest : public testing::TestWithParam<Variant> {};
INSTANTIATE_TEST_SUITE_P(Masked, VariantTest, testing::ValuesIn(kMasked), name_of_variant);
INSTANTIATE_TEST_SUITE_P(Unmasked, VariantTest, testing::ValuesIn(kUnmasked), name_of_variant);
INSTANTIATE_TEST_SUITE_P(Decayed, VariantTest, testing::Values(kDecayed), name_of_variant);

// Masking drops velocity on purpose, so that sums are conserved only without it.
class UnmaskedTest : public VariantTest {};
INSTANTIATE_TEST_SUITE_P(Unmasked, UnmaskedTest, testing::ValuesIn(kUnmasked), name_of_variant);

TEST_P(VariantTest, EqualsTheScalarReferenceBitForBit) {
  const std::size_t n = 1500;
  const CompressOptions options = options_of(GetParam(), 0.01);
  Worker worker({test::sparse("w", n)}, options, 1, 4);
  Reference reference(n, options);
  std::mt19937 random(7);
  for (int step = 0; step < 300; ++step) {
    const Tensors g =
        test::gaussian(worker.state.tensors(), random, step % 50 == 0 ? 100.0f : 1.0f);
    const std::vector<float> expected = reference.step(g[0], 0.25f, entries_at(0.01, n));
    std::vector<float> actual(n, 0.0f);
    const std::span<float> targets[] = {actual};
    decode_add(CheckedMessage(worker.step(g)), targets);
    ASSERT_TRUE(same_bits(actual, expected)) << step;
    ASSERT_TRUE(same_bits(worker.state.residual(0), reference.v)) << step;
    if (options.momentum == 0.0f) continue;
    ASSERT_TRUE(same_bits(worker.state.velocity(0), reference.u)) << step;
  }
}

// Nothing is lost: what was sent plus what is left equals what plain accumulation of the corrected
// gradient gives.
TEST_P(UnmaskedTest, SentPlusResidualEqualsUncompressedAccumulation) {
  const std::size_t n = 512;
  const int workers = 3;
  std::mt19937 random(8);
  for (const ValueType type : {ValueType::fp32, ValueType::fp16, ValueType::int8, ValueType::sign,
                               ValueType::table2, ValueType::table4}) {
    for (std::uint32_t rank = 0; rank < workers; ++rank) {
      CompressOptions options = options_of(GetParam(), 0.01);
      options.values = type;
      Worker worker({test::sparse("w", n)}, options, rank, workers);
      std::vector<double> u(n, 0.0), all(n, 0.0), sent(n, 0.0), size(n, 0.0);
      const double m = options.momentum;
      for (int step = 0; step < 1000; ++step) {
        const Tensors g = test::gaussian(worker.state.tensors(), random);
        for (std::size_t i = 0; i < n; ++i) {
          const double scaled = static_cast<double>(g[0][i]) / workers;
          u[i] = options.nesterov ? m * (u[i] + scaled) : m * u[i] + scaled;
          all[i] += u[i] + (options.nesterov ? scaled : 0.0);
          size[i] += std::fabs(u[i]) + std::fabs(scaled);
        }
        for (const Entries& frame : decode_entries(CheckedMessage(worker.step(g)), n)) {
          for (std::size_t j = 0; j < frame.indices.size(); ++j)
            sent[frame.indices[j]] += static_cast<double>(frame.values[j]);
        }
      }
      for (std::size_t i = 0; i < n; ++i) {
        const double left = static_cast<double>(worker.state.residual(0)[i]);
        ASSERT_NEAR(sent[i] + left, all[i], 1e-6 * size[i])
            << name_of(type) << " rank " << rank << " index " << i;
      }
    }
  }
}

// At ratio 1 nothing is masked, and what is sent is the velocity itself: momentum SGD.
TEST_P(VariantTest, RatioOneIsMomentumSgd) {
  const std::size_t n = 100;
  Worker worker({test::sparse("w", n)}, options_of(GetParam(), 1.0));
  std::vector<float> u(n, 0.0f);
  std::mt19937 random(9);
  const float m = GetParam().momentum;
  for (int step = 0; step < 50; ++step) {
    const Tensors g = test::gaussian(worker.state.tensors(), random);
    std::vector<float> update(n, 0.0f);
    const std::span<float> targets[] = {update};
    decode_add(CheckedMessage(worker.step(g)), targets);
    for (std::size_t i = 0; i < n; ++i) {
      // torch.optim.SGD: buf = m buf + g; nesterov adds m buf + g.
      u[i] = m * u[i] + g[0][i];
      const float expected = GetParam().nesterov ? g[0][i] + m * u[i] : u[i];
      ASSERT_NEAR(update[i], expected, 1e-5f * (1.0f + std::fabs(expected))) << step;
      ASSERT_EQ(worker.state.residual(0)[i], 0.0f);
    }
  }
}

TEST(Compressor, ResultsDoNotDependOnThreadsOrInstructionSet) {
  const std::vector<TensorSpec> specs = {test::sparse("a", 300'001), TensorSpec::of("bias", {77}),
                                         test::sparse("b", 131'072), test::sparse("empty", 0),
                                         test::sparse("c", 5)};
  std::vector<std::vector<std::byte>> expected;
  std::vector<float> expected_v;
  for (const Target& target : targets()) {
    if (!target.supported) continue;
    ASSERT_EQ(::setenv("DGC_TARGET", target.name.c_str(), 1), 0);
    for (const int threads : {1, 2, 5}) {
      SCOPED_TRACE(target.name + " " + std::to_string(threads));
      CompressOptions options;
      options.schedule = Schedule(0.003);
      options.values = ValueType::fp16;
      options.clip_norm = 100.0;
      options.threads = threads;
      Worker worker(specs, options, 0, 2);
      std::mt19937 random(10);
      for (std::size_t step = 0; step < 5; ++step) {
        const auto message = worker.step(test::gaussian(specs, random));
        EXPECT_LT(worker.compressor.clip_factor(), 1.0);
        if (expected.size() <= step) expected.push_back(message);
        ASSERT_EQ(message, expected[step]) << step;
      }
      const auto v = worker.state.residual(0);
      if (expected_v.empty()) expected_v.assign(v.begin(), v.end());
      ASSERT_TRUE(same_bits(v, expected_v));
    }
  }
  ::unsetenv("DGC_TARGET");
}

// The threshold on the gradient scaled by 1/N is N^-1/2 · clip_norm.
TEST(Compressor, ClipsByTheLocalShareOfTheGlobalNorm) {
  const int workers = 4;
  CompressOptions options;
  options.schedule = Schedule(1.0);
  options.momentum = 0.0f;
  options.clip_norm = 3.0;
  const std::vector<TensorSpec> specs = {test::sparse("a", 3), test::sparse("b", 1)};
  const auto sent_norm = [&](float size) {
    Worker worker(specs, options, 0, workers);
    // All tensors together: the norm of (2, 1, 2 | 4) is 5.
    const Tensors g = {{2.0f * size, 1.0f * size, 2.0f * size}, {4.0f * size}};
    Tensors out = {std::vector<float>(3), std::vector<float>(1)};
    const std::span<float> targets[] = {out[0], out[1]};
    decode_add(CheckedMessage(worker.step(g)), targets);
    double sum = 0.0;
    for (const auto& t : out) {
      for (const float x : t) sum += static_cast<double>(x) * x;
    }
    EXPECT_NEAR(out[1][0] / out[0][1], 4.0, 1e-6) << "the direction is kept";
    return std::sqrt(sum);
  };
  EXPECT_NEAR(sent_norm(100.0f), 3.0 / 2.0, 1e-5);  // clip_norm / sqrt(4)
  EXPECT_NEAR(sent_norm(1.0f), 5.0 / 4.0, 1e-6);    // norm / N is below 1.5: untouched
  EXPECT_NEAR(sent_norm(1.2001f), 1.5, 1e-3);       // in unscaled units sqrt(N) · clip_norm = 6
}

TEST(Compressor, ClippingTakesTheNormOfAllBucketsFromTheCaller) {
  CompressOptions options;
  options.schedule = Schedule(1.0);
  options.momentum = 0.0f;
  options.clip_norm = 1.0;
  Worker worker({test::sparse("a", 1), test::sparse("b", 1)}, options);
  const Tensors g = {{3.0f}, {4.0f}};
  const Gradient a{0, g[0]};
  const Gradient b{1, g[1]};
  const Gradient both[] = {a, b};
  const double norm = worker.compressor.norm(both);
  EXPECT_DOUBLE_EQ(norm, 5.0);
  std::vector<std::byte> buffer(worker.compressor.bound());
  const std::size_t size = worker.compressor.compress({&b, 1}, buffer, {.norm = norm});
  const auto entries = decode_entries(CheckedMessage(std::span(buffer).first(size)), 10);
  EXPECT_NEAR(entries[0].values[0], 0.8f, 1e-6f);
}

TEST(Compressor, TensorsSentWholeAreNotMasked) {
  CompressOptions options;
  options.schedule = Schedule(0.1);
  Worker worker({TensorSpec::of("bias", {4}), test::sparse("one", 1), test::sparse("w", 100)},
                options);
  std::mt19937 random(11);
  worker.step(test::gaussian(worker.state.tensors(), random));
  for (const std::size_t whole : {0, 1}) {
    for (const float u : worker.state.velocity(whole)) EXPECT_NE(u, 0.0f);
    for (const float v : worker.state.residual(whole)) EXPECT_EQ(v, 0.0f);
  }
  const auto u = worker.state.velocity(2);
  EXPECT_EQ(std::count(u.begin(), u.end(), 0.0f), 10);
  EXPECT_EQ(worker.compressor.stats()[0].frame.coding, IndexCoding::dense);
}

TEST(Compressor, NonFiniteGradientIsNamedAndNeverEnters) {
  for (const float bad : {kNan, std::numeric_limits<float>::infinity()}) {
    CompressOptions options;
    options.threads = 2;
    Worker worker({test::sparse("first", 1000), test::sparse("conv1.weight", 300'000)}, options, 2,
                  4);
    std::mt19937 random(12);
    worker.step(test::gaussian(worker.state.tensors(), random));
    Tensors g = test::gaussian(worker.state.tensors(), random);
    // As if the bad values had been zero and nothing had been sent.
    Worker clean({test::sparse("first", 1000), test::sparse("conv1.weight", 300'000)}, options, 2,
                 4);
    for (std::size_t t = 0; t < 2; ++t) {
      std::copy_n(worker.state.residual(t).begin(), g[t].size(), clean.state.residual(t).begin());
      std::copy_n(worker.state.velocity(t).begin(), g[t].size(), clean.state.velocity(t).begin());
    }
    g[1][299'999] = 0.0f;
    g[1][123'457] = 0.0f;
    clean.compress(g);
    clean.compressor.restore();
    g[1][299'999] = -bad;
    g[1][123'457] = bad;
    try {
      worker.compress(g);
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::nonfinite_gradient);
      const std::string text = error.what();
      for (const char* part : {"'conv1.weight'", "index 123457", "step 1", "rank 2"}) {
        EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
      }
    }
    EXPECT_EQ(worker.state.step(), 1u);
    for (std::size_t t = 0; t < 2; ++t) {
      EXPECT_TRUE(same_bits(worker.state.residual(t), clean.state.residual(t)));
      EXPECT_TRUE(same_bits(worker.state.velocity(t), clean.state.velocity(t)));
    }
    // The next step goes on as usual.
    EXPECT_NO_THROW(worker.step(test::gaussian(worker.state.tensors(), random)));
  }
}

TEST(Compressor, WithClippingANonFiniteGradientLeavesTheStateUntouched) {
  CompressOptions options;
  options.clip_norm = 1.0;
  Worker worker({test::sparse("w", 1000)}, options);
  std::mt19937 random(13);
  worker.step(test::gaussian(worker.state.tensors(), random));
  const std::vector<float> before(worker.state.residual(0).begin(), worker.state.residual(0).end());
  Tensors g = test::gaussian(worker.state.tensors(), random);
  g[0][7] = kNan;
  EXPECT_EQ(code_of([&] { worker.compress(g); }), ErrorCode::nonfinite_gradient);
  EXPECT_TRUE(same_bits(worker.state.residual(0), before));
}

TEST(Compressor, OverflowOfTheResidualIsAnErrorAndMasksNothing) {
  CompressOptions options;
  options.momentum = 0.0f;
  options.schedule = Schedule(0.01);
  Worker worker({test::sparse("a", 200), test::sparse("b", 200)}, options);
  Tensors g = {std::vector<float>(200, 1.0f), std::vector<float>(200, 1.0f)};
  for (int i = 0; i < 3; ++i) g[1][static_cast<std::size_t>(i)] = FLT_MAX;
  worker.step(g);
  const std::vector<float> before(worker.state.residual(0).begin(), worker.state.residual(0).end());
  EXPECT_EQ(code_of([&] { worker.compress(g); }), ErrorCode::nonfinite_residual);
  const auto a = worker.state.residual(0);
  for (std::size_t i = 0; i < a.size(); ++i)
    EXPECT_EQ(a[i], before[i] + 1.0f) << "accumulated, not sent";
}

TEST(Compressor, RestoreGivesBackWhatWasSelected) {
  for (const ValueType type : {ValueType::fp32, ValueType::int8}) {
    CompressOptions options;
    options.schedule = Schedule(0.05);
    options.values = type;
    options.dense_values = type;
    const std::vector<TensorSpec> specs = {test::sparse("w", 5000), TensorSpec::of("bias", {40})};
    Worker worker(specs, options);
    Worker silent(specs, options);
    std::mt19937 random(14);
    const Tensors first = test::gaussian(specs, random);
    worker.step(first);
    silent.step(first);
    const Tensors second = test::gaussian(specs, random);
    worker.compress(second);
    worker.compressor.restore();
    EXPECT_EQ(worker.state.step(), 1u);
    // Accumulated without selection: the same kernels with nothing sent.
    for (std::size_t t = 0; t < 2; ++t) {
      const auto u = silent.state.velocity(t);
      const auto v = silent.state.residual(t);
      for (std::size_t i = 0; i < u.size(); ++i) {
        u[i] = 0.9f * u[i] + second[t][i];
        v[i] += u[i];
      }
      EXPECT_TRUE(same_bits(worker.state.velocity(t), u));
      EXPECT_TRUE(same_bits(worker.state.residual(t), v));
    }
  }
}

// A round that failed is as one that sent nothing: the residual decays once, and nothing else goes.
TEST(Compressor, RestoreKeepsADecayedResidualBitForBit) {
  for (const ValueType type : {ValueType::fp32, ValueType::table2}) {
    CompressOptions options = options_of(kDecayed, 0.05);
    options.values = options.dense_values = type;
    const std::vector<TensorSpec> specs = {test::sparse("w", 5000), TensorSpec::of("bias", {40})};
    Worker worker(specs, options);
    std::mt19937 random(14);
    worker.step(test::gaussian(specs, random));
    std::vector<std::vector<float>> expected;
    for (std::size_t t = 0; t < 2; ++t) {
      const auto v = worker.state.residual(t);
      expected.emplace_back(v.begin(), v.end());
    }
    const Tensors second = test::gaussian(specs, random);
    worker.compress(second);
    worker.compressor.restore();
    for (std::size_t t = 0; t < 2; ++t) {
      for (std::size_t i = 0; i < expected[t].size(); ++i) {
        expected[t][i] = 0.95f * expected[t][i] + second[t][i];
      }
      EXPECT_TRUE(same_bits(worker.state.residual(t), expected[t]));
    }
  }
}

TEST(Compressor, ResidualDecayIsWithoutMomentum) {
  const auto code = [](float decay, float momentum, MomentumCorrection correction) {
    return code_of([&] {
      Worker({test::sparse("w", 10)},
             {.momentum = momentum, .momentum_correction = correction, .residual_decay = decay});
    });
  };
  EXPECT_EQ(code(0.9f, 0.0f, MomentumCorrection::local), ErrorCode::ok);
  EXPECT_EQ(code(0.9f, 0.9f, MomentumCorrection::off), ErrorCode::ok);
  EXPECT_EQ(code(0.9f, 0.9f, MomentumCorrection::local), ErrorCode::invalid_argument);
  EXPECT_EQ(code(0.9f, 0.9f, MomentumCorrection::global), ErrorCode::invalid_argument);
  for (const float bad : {0.0f, -0.5f, 1.01f, kNan}) {
    EXPECT_EQ(code(bad, 0.0f, MomentumCorrection::local), ErrorCode::invalid_argument);
  }
}

TEST(Compressor, LaidOutIsWhatAMessageWouldHaveSaid) {
  CompressOptions options;
  options.schedule = Schedule(0.05);
  const std::vector<TensorSpec> specs = {test::sparse("w", 5000), TensorSpec::of("bias", {40})};
  Worker messages(specs, options);
  options.values = ValueType::sign;  // nothing is encoded, so that it does not matter
  Worker arrays(specs, options);
  std::mt19937 random(21);
  std::vector<float> values(5040, 7.0f);
  for (int step = 0; step < 5; ++step) {
    const Tensors g = test::gaussian(specs, random);
    std::vector<float> expected(5040, 0.0f);
    const std::vector<std::span<float>> targets = {std::span(expected).first(5000),
                                                   std::span(expected).subspan(5000)};
    decode_add(CheckedMessage(messages.step(g)), targets);
    const std::vector<Gradient> gradients = {{0, g[0]}, {1, g[1]}};
    compress::Internals::lay_out(arrays.compressor, gradients, values, ValueType::fp16, {});
    EXPECT_TRUE(same_bits(values, expected));
    EXPECT_EQ(arrays.compressor.stats()[0].sent, 250u);
    EXPECT_EQ(arrays.compressor.stats()[1].frame.bytes, 81u) << "as fp16 with one scale";
    arrays.compressor.commit();
    for (std::size_t t = 0; t < 2; ++t) {
      EXPECT_TRUE(same_bits(arrays.state.velocity(t), messages.state.velocity(t)));
      EXPECT_TRUE(same_bits(arrays.state.residual(t), messages.state.residual(t)));
    }
  }
  const Tensors g = test::gaussian(specs, random);
  const std::vector<Gradient> one = {{0, g[0]}};
  EXPECT_EQ(code_of([&] {
              compress::Internals::lay_out(arrays.compressor, one, values, ValueType::fp32, {});
            }),
            ErrorCode::shape_mismatch);
  const std::vector<float> u(arrays.state.velocity(0).begin(), arrays.state.velocity(0).end());
  const std::span<float> part = std::span(values).first(5000);
  compress::Internals::lay_out(arrays.compressor, one, part, ValueType::fp32, {});
  arrays.compressor.restore();
  for (std::size_t i = 0; i < u.size(); ++i) {
    EXPECT_EQ(arrays.state.velocity(0)[i], 0.9f * u[i] + g[0][i]) << "not masked any more";
  }
}

TEST(Compressor, BucketsGiveTheSameFramesAsOneCall) {
  CompressOptions options;
  options.schedule = Schedule(0.01);
  const std::vector<TensorSpec> specs = {test::sparse("a", 2000), test::sparse("b", 3000),
                                         test::sparse("c", 100)};
  Worker whole(specs, options);
  Worker buckets(specs, options);
  std::mt19937 random(15);
  std::vector<std::byte> buffer(buckets.compressor.bound());
  for (int step = 0; step < 4; ++step) {
    const Tensors g = test::gaussian(specs, random);
    const auto expected = decode_entries(CheckedMessage(whole.step(g)), 100000);
    std::vector<Entries> actual(3);
    for (const std::size_t t : {2, 0, 1}) {  // as backward would: last layers first
      const Gradient gradient{t, g[t]};
      const std::size_t size = buckets.compressor.compress({&gradient, 1}, buffer);
      actual[t] = decode_entries(CheckedMessage(std::span(buffer).first(size)), 100000).at(0);
    }
    buckets.compressor.commit();
    for (std::size_t t = 0; t < 3; ++t) {
      EXPECT_EQ(actual[t].indices, expected[t].indices);
      EXPECT_EQ(actual[t].values, expected[t].values);
    }
  }
  EXPECT_EQ(buckets.state.step(), 4u);
}

TEST(Compressor, ScaleUnscalesBeforeAccumulation) {
  CompressOptions options;
  Worker plain({test::sparse("w", 1000)}, options);
  Worker scaled({test::sparse("w", 1000)}, options);
  std::mt19937 random(16);
  Tensors g = test::gaussian(plain.state.tensors(), random);
  const auto expected = plain.compress(g);
  for (float& x : g[0]) x *= 1024.0f;
  EXPECT_EQ(scaled.compress(g, {.scale = 1.0 / 1024.0}), expected);
}

TEST(Compressor, WrongUseIsAnErrorThatChangesNothing) {
  CompressOptions options;
  Worker worker({test::sparse("a", 100), test::sparse("b", 10)}, options);
  const std::vector<float> a(100, 1.0f);
  const std::vector<float> b(10, 1.0f);
  std::vector<std::byte> buffer(worker.compressor.bound());
  const auto compress = [&](std::vector<Gradient> list, std::size_t room) {
    return code_of([&] { worker.compressor.compress(list, std::span(buffer).first(room)); });
  };
  EXPECT_EQ(compress({{0, b}}, buffer.size()), ErrorCode::shape_mismatch);
  EXPECT_EQ(compress({{2, b}}, buffer.size()), ErrorCode::invalid_argument);
  EXPECT_EQ(compress({{1, b}, {0, a}}, buffer.size()), ErrorCode::invalid_argument);
  EXPECT_EQ(compress({{0, a}}, 40), ErrorCode::buffer_too_small);
  for (const float v : worker.state.residual(0)) EXPECT_EQ(v, 0.0f);
  EXPECT_EQ(compress({{0, a}}, buffer.size()), ErrorCode::ok);
  EXPECT_EQ(compress({{0, a}}, buffer.size()), ErrorCode::wrong_order);
  EXPECT_EQ(compress({{1, b}}, buffer.size()), ErrorCode::ok) << "another tensor of the same step";

  State state({test::sparse("a", 3)}, 0, 1, false);
  EXPECT_EQ(code_of([&] { Compressor c(state, {}); }), ErrorCode::invalid_argument)
      << "no velocity";
  const auto rejects = [](auto change) {
    State s({test::sparse("a", 3)});
    CompressOptions o;
    change(o);
    return code_of([&] { Compressor c(s, o); });
  };
  EXPECT_EQ(rejects([](auto& o) { o.momentum = 1.0f; }), ErrorCode::invalid_argument);
  EXPECT_EQ(rejects([](auto& o) { o.momentum = kNan; }), ErrorCode::invalid_argument);
  EXPECT_EQ(rejects([](auto& o) { o.clip_norm = -1.0; }), ErrorCode::invalid_argument);
  EXPECT_EQ(rejects([](auto& o) { o.threads = 0; }), ErrorCode::invalid_argument);
  EXPECT_EQ(rejects([](auto& o) {
              o.nesterov = true;
              o.momentum = 0.0f;
            }),
            ErrorCode::invalid_argument);
}

TEST(Compressor, AnAllZeroGradientSendsNothing) {
  Worker worker({test::sparse("w", 1000), TensorSpec::of("bias", {10})}, {});
  const Tensors zero = {std::vector<float>(1000), std::vector<float>(10)};
  const std::vector<std::byte> message = worker.step(zero);
  EXPECT_TRUE(CheckedMessage(message).frames().empty());
  EXPECT_EQ(message.size(), kMessageOverhead);
}

}  // namespace
}  // namespace dgc
