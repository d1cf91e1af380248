// reuse, sampled and exact select the same set: the one that a full sort selects.
#include <gtest/gtest.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>

#include "support/helpers.h"

namespace dgc {
namespace {

using test::Tensors;
using test::Worker;

/// A sequence of gradients, by step and element.
struct Sequence {
  const char* name;
  float (*value)(int step, std::size_t i, std::size_t n, std::mt19937& random);
};

void PrintTo(const Sequence& sequence, std::ostream* out) { *out << sequence.name; }

float gaussian(std::mt19937& random) { return std::normal_distribution<float>()(random); }

const Sequence kSequences[] = {
    {"constant", [](int, std::size_t, std::size_t, std::mt19937&) { return 1.0f; }},
    {"all_ties",
     [](int, std::size_t, std::size_t, std::mt19937& r) { return (r() & 1) != 0 ? 0.5f : -0.5f; }},
    {"zeros", [](int, std::size_t, std::size_t, std::mt19937&) { return 0.0f; }},
    {"scale_jumps",
     [](int s, std::size_t, std::size_t, std::mt19937& r) {
       return gaussian(r) * (s % 4 == 2 ? 1e6f : s % 4 == 3 ? 1e-6f : 1.0f);
     }},
    {"denormals",
     [](int, std::size_t, std::size_t, std::mt19937& r) { return gaussian(r) * 1e-42f; }},
    {"huge_outlier", [](int s, std::size_t i, std::size_t n,
                        std::mt19937& r) { return i == n / 2 && s == 3 ? 1e30f : gaussian(r); }},
    {"alternating_rows",
     [](int s, std::size_t i, std::size_t, std::mt19937& r) {
       return static_cast<int>(i / 64 % 4) == s % 4 ? gaussian(r) : 0.0f;
     }},
    {"gaussian", [](int, std::size_t, std::size_t, std::mt19937& r) { return gaussian(r); }},
    {"ascending",
     [](int, std::size_t i, std::size_t, std::mt19937&) { return static_cast<float>(i + 1); }},
};

/// What a full sort of v by magnitude, then index, selects.
std::vector<std::uint32_t> sorted_selection(std::span<const float> v, std::size_t k) {
  std::vector<std::uint32_t> order(v.size());
  std::iota(order.begin(), order.end(), 0u);
  std::erase_if(order, [&](std::uint32_t i) { return v[i] == 0.0f; });
  const auto larger = [&](std::uint32_t a, std::uint32_t b) {
    return std::fabs(v[a]) != std::fabs(v[b]) ? std::fabs(v[a]) > std::fabs(v[b]) : a < b;
  };
  k = std::min(k, order.size());
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(k), order.end(),
                    larger);
  order.resize(k);
  std::sort(order.begin(), order.end());
  return order;
}

class SelectionTest : public testing::TestWithParam<std::tuple<int, Sequence>> {};

TEST_P(SelectionTest, AllStrategiesEqualAFullSort) {
  const auto n = static_cast<std::size_t>(std::get<0>(GetParam()));
  const Sequence sequence = std::get<1>(GetParam());
  CompressOptions options;
  // Warm-up inside the sequence: the ratio, and with it k, changes while thresholds are carried.
  options.schedule = Schedule::stages({0.25, 0.05}, 3, 0.01);
  std::vector<std::unique_ptr<Worker>> all;
  for (const Selection selection : {Selection::reuse, Selection::sampled, Selection::exact}) {
    options.selection = selection;
    all.push_back(std::make_unique<Worker>(
        std::vector{test::sparse("w", static_cast<std::int64_t>(n))}, options));
  }
  std::mt19937 random(42);
  std::vector<float> v(n, 0.0f);
  std::vector<float> u(n, 0.0f);
  for (int step = 0; step < 14; ++step) {
    Tensors gradients{std::vector<float>(n)};
    for (std::size_t i = 0; i < n; ++i) gradients[0][i] = sequence.value(step, i, n, random);
    for (std::size_t i = 0; i < n; ++i) {
      u[i] = 0.9f * u[i] + gradients[0][i];
      v[i] += u[i];
      if (!(std::fabs(u[i]) >= FLT_MIN)) u[i] = 0.0f;
    }
    const std::size_t k = entries_at(options.schedule.ratio_at(step), n);
    const std::vector<std::uint32_t> expected = sorted_selection(v, k);
    std::vector<std::byte> first;
    for (const auto& worker : all) {
      const std::vector<std::byte> message = worker->step(gradients);
      const std::vector<Entries> frames = decode_entries(CheckedMessage(message), n);
      ASSERT_EQ(frames.size(), expected.empty() ? 0u : 1u);
      if (!frames.empty()) {
        std::vector<std::uint32_t> sent;
        for (std::size_t i = 0; i < frames[0].indices.size(); ++i) {
          if (frames[0].values[i] != 0.0f) sent.push_back(frames[0].indices[i]);
        }
        ASSERT_EQ(sent, expected) << name_of(worker->compressor.options().selection) << " step "
                                  << step;
      }
      if (first.empty()) first = message;
      ASSERT_EQ(message, first) << name_of(worker->compressor.options().selection) << " step "
                                << step;
    }
    for (const std::uint32_t i : expected) {
      v[i] = 0.0f;
      if (k < n) u[i] = 0.0f;
    }
    ASSERT_TRUE(std::equal(v.begin(), v.end(), all[0]->state.residual(0).begin()));
  }
}

INSTANTIATE_TEST_SUITE_P(Sequences, SelectionTest,
                         testing::Combine(testing::Values(0, 1, 2, 31, 32, 33, 4097, 1'000'007),
                                          testing::ValuesIn(kSequences)),
                         [](const auto& param) {
                           return std::string(std::get<1>(param.param).name) + "_" +
                                  std::to_string(std::get<0>(param.param));
                         });

/// Compresses the same gradients with both, and then does the same with both.
void step_both(Worker& guessing, Worker& exact, const Tensors& gradients, int step) {
  ErrorCode codes[2] = {ErrorCode::ok, ErrorCode::ok};
  std::vector<std::byte> messages[2];
  Worker* const both[] = {&guessing, &exact};
  for (int i = 0; i < 2; ++i) {
    try {
      messages[i] = both[i]->compress(gradients);
    } catch (const Error& error) {
      codes[i] = error.code();
    }
    // Some steps fail after they were compressed.
    if (codes[i] != ErrorCode::ok || step % 7 == 5) {
      both[i]->compressor.restore();
    } else {
      both[i]->compressor.commit();
    }
  }
  ASSERT_EQ(codes[0], codes[1]);
  ASSERT_EQ(messages[0], messages[1]);
  for (std::size_t t = 0; t < gradients.size(); ++t) {
    ASSERT_TRUE(test::same_bits(guessing.state.residual(t), exact.state.residual(t)));
    ASSERT_TRUE(test::same_bits(guessing.state.velocity(t), exact.state.velocity(t)));
  }
}

// A guess takes entries out of u and v before the selection is known. Wrong ones, bad gradients and
// steps that are undone must leave no trace: `exact` never guesses.
TEST(Selection, GuessesLeaveNoTrace) {
  const std::vector<TensorSpec> specs = {test::sparse("a", 5000), test::sparse("b", 140'000)};
  for (const bool masking : {true, false}) {
    for (const ValueType type : {ValueType::fp32, ValueType::fp16, ValueType::int8}) {
      for (const double ratio : {0.25, 0.01}) {
        SCOPED_TRACE(std::string(name_of(type)) + (masking ? " masked " : " ") +
                     std::to_string(ratio));
        CompressOptions options;
        options.schedule = Schedule(ratio);
        options.values = type;
        options.masking = masking;
        options.selection = Selection::reuse;
        Worker guessing(specs, options);
        options.selection = Selection::exact;
        Worker exact(specs, options);
        std::mt19937 random(4);
        for (int step = 0; step < test::repeats(40, 24); ++step) {
          const float scale = step % 10 == 8 ? 100.0f : step % 10 == 9 ? 0.01f : 1.0f;
          Tensors g = test::gaussian(specs, random, scale);
          if (step % 11 == 6) g[1][77] = std::numeric_limits<float>::quiet_NaN();
          SCOPED_TRACE(step);
          ASSERT_NO_FATAL_FAILURE(step_both(guessing, exact, g, step));
        }
      }
    }
  }
}

}  // namespace
}  // namespace dgc
