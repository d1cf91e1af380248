// reuse, sampled and exact select the same set: the one that a full sort selects.
#include <gtest/gtest.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
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
      const std::vector<Entries> frames = decode_entries(message, n);
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

}  // namespace
}  // namespace dgc
