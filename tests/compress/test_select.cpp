#include "compress/select.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <string>
#include <utility>

namespace dgc::compress {
namespace {

TEST(KthLargest, EqualsSorting) {
  std::mt19937 random(1);
  for (const std::size_t size : {1, 2, 3, 100, 5000}) {
    for (const std::uint32_t spread : {1u, 5u, 1000u, 0x7F7FFFFFu}) {
      std::vector<std::uint32_t> values(size);
      for (auto& v : values) v = static_cast<std::uint32_t>(random() % spread);
      std::vector<std::uint32_t> sorted = values;
      std::sort(sorted.rbegin(), sorted.rend());
      for (const std::size_t k : {std::size_t{1}, size / 2 + 1, size}) {
        std::vector<std::uint32_t> copy = values;
        const KthLargest kth = kth_largest(copy, k);
        SCOPED_TRACE(std::to_string(size) + " " + std::to_string(spread) + " " + std::to_string(k));
        EXPECT_EQ(kth.magnitude, sorted[k - 1]);
        const auto first_k = sorted.begin() + static_cast<std::ptrdiff_t>(k);
        EXPECT_EQ(kth.ties, std::count(sorted.begin(), first_k, sorted[k - 1]));
        EXPECT_EQ(kth.equal, std::count(sorted.begin(), sorted.end(), sorted[k - 1]));
      }
    }
  }
}

TEST(ExactThreshold, ReachedByKAndNotManyMore) {
  std::mt19937 random(2);
  std::normal_distribution<float> sample;
  std::vector<std::uint32_t> histogram;
  for (const float width : {1.0f, 1e-6f, 1e-41f, 0.0f}) {
    for (const std::size_t n : {1, 10, 1000, 100000}) {
      std::vector<float> v(n);
      for (float& x : v)
        x = width == 1e-6f ? 1.0f + width * sample(random) : width * sample(random);
      const auto nonzero = static_cast<std::size_t>(
          std::count_if(v.begin(), v.end(), [](float x) { return x != 0.0f; }));
      for (const std::size_t k : {std::size_t{1}, n / 10 + 1, n}) {
        const std::uint32_t threshold = exact_threshold(v, k, histogram);
        ASSERT_GE(threshold, 1u);
        std::vector<std::uint32_t> magnitudes;
        for (const float x : v) magnitudes.push_back(magnitude_bits(x));
        const auto reached = static_cast<std::size_t>(std::count_if(
            magnitudes.begin(), magnitudes.end(), [&](std::uint32_t m) { return m >= threshold; }));
        EXPECT_GE(reached, std::min(k, nonzero));
        // Ties may push it further, and only they: the least magnitude reached has to be a wanted
        // one.
        std::sort(magnitudes.rbegin(), magnitudes.rend());
        const bool many = reached > k + k / 2 + 256;
        EXPECT_TRUE(!many || magnitudes[reached - 1] == magnitudes[k - 1]);
      }
    }
  }
}

CandidateList list_of(std::initializer_list<std::pair<std::uint32_t, float>> entries) {
  CandidateList list;
  for (const auto& [index, value] : entries) {
    const EntryArrays out = list.room_for(1);
    *out.indices = index;
    *out.values = value;
    *out.velocities = -value;
    list.added(1);
  }
  return list;
}

TEST(Trim, TakesTheLargestAndBreaksTiesByIndex) {
  // Anew each time: ties that are not wanted leave the lists.
  const auto draw = [] {
    std::vector<CandidateList> lists(3);
    lists[0] = list_of({{0, 1.0f}, {3, -2.0f}, {4, 1.0f}});
    lists[2] = list_of({{9, 1.0f}, {12, 3.0f}, {13, -1.0f}});
    return lists;
  };
  const Kernels& kernels = active_kernels();
  TrimScratch scratch;
  SelectedEntries out;
  const auto select = [&](std::size_t k, std::uint32_t sure, bool with_velocities) {
    std::vector<CandidateList> lists = draw();
    const Trimmed trimmed = trim(kernels, lists, k, sure, scratch);
    if (!trimmed.too_sure) gather(kernels, lists, trimmed, with_velocities, out);
    return trimmed;
  };
  for (const float sure : {2.5f, 2.0f, 1.5f, 100.0f}) {
    const Trimmed trimmed = select(4, magnitude_bits(sure), true);
    EXPECT_EQ(out.indices, (std::vector<std::uint32_t>{0, 3, 4, 12})) << sure;
    EXPECT_EQ(out.values, (std::vector<float>{1.0f, -2.0f, 1.0f, 3.0f})) << sure;
    EXPECT_EQ(out.velocities, (std::vector<float>{-1.0f, 2.0f, -1.0f, -3.0f})) << sure;
    EXPECT_EQ(trimmed.found, 6u);
    EXPECT_EQ(trimmed.selected, 4u);
    EXPECT_EQ(trimmed.smallest, magnitude_bits(1.0f));
    EXPECT_FALSE(trimmed.too_sure);
    // What was not sure is left to be taken out of u and v.
    std::vector<std::uint32_t> rest;
    for (const std::uint32_t index : out.indices) {
      const float value = index == 3 ? 2.0f : index == 12 ? 3.0f : 1.0f;
      if (value < sure) rest.push_back(index);
    }
    const std::uint32_t* const left = scratch.doubtful.entries().indices;
    EXPECT_EQ(std::vector<std::uint32_t>(left, left + scratch.doubtful.size()), rest) << sure;
  }
  EXPECT_TRUE(select(4, magnitude_bits(1.0f), true).too_sure);
  EXPECT_TRUE(select(2, magnitude_bits(2.0f), true).too_sure);
  EXPECT_EQ(select(2, kNoCandidates, false).smallest, magnitude_bits(2.0f));
  EXPECT_EQ(out.indices, (std::vector<std::uint32_t>{3, 12}));
  EXPECT_TRUE(out.velocities.empty());
  select(100, kNoCandidates, true);
  EXPECT_EQ(out.indices.size(), 6u);
  gather(kernels, {}, trim(kernels, {}, 3, kNoCandidates, scratch), true, out);
  EXPECT_TRUE(out.indices.empty());
}

TEST(Trim, EqualsSortingForManyCandidates) {
  std::mt19937 random(4);
  std::normal_distribution<float> sample;
  const Kernels& kernels = active_kernels();
  TrimScratch scratch;
  SelectedEntries out;
  // Steps between values: with large ones most are alike.
  for (const float step : {0.0f, 0.01f, 0.5f}) {
    std::vector<float> values(20000);
    for (float& value : values) {
      value = sample(random);
      if (step > 0.0f) value = std::round(value / step) * step;
      if (value == 0.0f) value = step + 0.125f;
    }
    std::vector<std::uint32_t> order(values.size());
    std::iota(order.begin(), order.end(), 0u);
    std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
      return std::fabs(values[a]) > std::fabs(values[b]);
    });
    for (const std::size_t k : {1u, 777u, 5000u, 19999u}) {
      for (const float sure : {1.0f, 1.5f, 100.0f}) {
        std::vector<CandidateList> lists(5);
        for (std::uint32_t i = 0; i < values.size(); ++i) {
          CandidateList& list = lists[i / 4000];
          const EntryArrays room = list.room_for(1);
          *room.indices = i;
          *room.values = values[i];
          *room.velocities = -values[i];
          list.added(1);
        }
        const Trimmed trimmed = trim(kernels, lists, k, magnitude_bits(sure), scratch);
        EXPECT_EQ(trimmed.too_sure, std::fabs(values[order[k - 1]]) >= sure);
        if (trimmed.too_sure) continue;
        gather(kernels, lists, trimmed, true, out);
        std::vector<std::uint32_t> expected(order.begin(),
                                            order.begin() + static_cast<std::ptrdiff_t>(k));
        std::sort(expected.begin(), expected.end());
        ASSERT_EQ(out.indices, expected) << step << " " << k << " " << sure;
        for (std::size_t i = 0; i < k; ++i) {
          ASSERT_EQ(out.values[i], values[expected[i]]);
          ASSERT_EQ(out.velocities[i], -values[expected[i]]);
        }
      }
    }
  }
}

// A carried threshold has to settle: few candidates more than k, no second passes.
TEST(CarriedThreshold, SettlesOnAGaussian) {
  std::mt19937 random(3);
  std::normal_distribution<float> sample;
  const std::size_t n = 200000;
  const std::size_t k = 200;
  CarriedThreshold carried;
  std::uint32_t threshold = magnitude_bits(3.0f);
  std::size_t short_falls = 0;
  std::size_t total = 0;
  for (int step = 0; step < 200; ++step) {
    std::vector<std::uint32_t> magnitudes;
    for (std::size_t i = 0; i < n; ++i) {
      const std::uint32_t m = magnitude_bits(sample(random));
      if (m >= threshold) magnitudes.push_back(m);
    }
    const std::size_t found = magnitudes.size();
    if (found < k) {
      carried.fell_short();
      ++short_falls;
    }
    const std::uint32_t smallest =
        found == 0 ? 1 : kth_largest(magnitudes, std::min(k, found)).magnitude;
    carried.update(found, k, smallest, threshold);
    threshold = carried.guess(k);
    if (step >= 50) total += found;
  }
  EXPECT_LE(short_falls, 2u);
  EXPECT_LT(static_cast<double>(total) / 150.0, 2.0 * k);
  EXPECT_EQ(carried.guess(k + 1), kNoCandidates) << "another k has no guess";
}

}  // namespace
}  // namespace dgc::compress
