// The algorithm `owner` on small tensors, where a slice may hold nearly all of a tensor.
#include <gtest/gtest.h>

#include <algorithm>

#include "dgc/exchange.h"
#include "exchange/layout.h"
#include "support/helpers.h"
#include "support/ranks.h"

namespace dgc {
namespace {

using namespace std::chrono_literals;
using test::Tensors;

constexpr std::array kTypes = {ValueType::fp32,  ValueType::fp16, ValueType::bf16,
                               ValueType::int8,  ValueType::sign, ValueType::table2,
                               ValueType::table4};

struct Run {
  int workers = 2;
  ValueType values = ValueType::fp32;
  double ratio = 1.0;
};

/// One step of all workers with `owner`: no error, the same parameters on all ranks, and what all
/// gradients add up to is in the parameters or in a residual.
void expect_right(const std::vector<TensorSpec>& model, const Run& run) {
  SCOPED_TRACE(std::to_string(run.workers) + " workers, " + std::string(name_of(run.values)) +
               ", ratio " + std::to_string(run.ratio));
  const auto size = static_cast<std::size_t>(run.workers);
  std::vector<Tensors> parameters(size);
  std::vector<Tensors> residuals(size);
  std::vector<Tensors> gradients(size);
  const auto errors = test::run_ranks(run.workers, 60s, [&](Group& group) {
    const auto rank = static_cast<std::size_t>(group.rank());
    State state(model, static_cast<std::uint32_t>(rank), static_cast<std::uint32_t>(size), false);
    Exchange exchange(group, model,
                      {.schedule = Schedule(run.ratio),
                       .momentum = 0.0f,
                       .values = run.values,
                       .dense_values = run.values},
                      {.algorithm = Algorithm::owner, .check_parameters_every = 1}, &state);
    std::mt19937 random(static_cast<std::uint32_t>(rank));
    gradients[rank] = test::gaussian(model, random);
    std::vector<Gradient> list;
    std::vector<std::span<float>> targets;
    for (std::size_t t = 0; t < model.size(); ++t) {
      list.push_back({t, gradients[rank][t]});
      parameters[rank].emplace_back(model[t].elements(), 0.0f);
    }
    for (auto& tensor : parameters[rank]) targets.emplace_back(tensor);
    exchange.step(list, targets, 1.0f);
    for (std::size_t t = 0; t < model.size(); ++t) {
      residuals[rank].emplace_back(state.residual(t).begin(), state.residual(t).end());
    }
  });
  for (const auto& error : errors) ASSERT_FALSE(error) << error->what();
  for (std::size_t t = 0; t < model.size(); ++t) {
    for (std::size_t i = 0; i < model[t].elements(); ++i) {
      double expected = 0.0;
      double actual = static_cast<double>(parameters[0][t][i]);
      for (std::size_t r = 0; r < size; ++r) {
        expected += static_cast<double>(gradients[r][t][i]) / run.workers;
        actual += static_cast<double>(residuals[r][t][i]);
      }
      ASSERT_NEAR(actual, expected, 1e-5) << model[t].name << " at " << i;
    }
  }
}

// Two owners cut the model in the middle: a tensor of as many elements before or after moves the
// cut through the small one, from its beginning to its end.
TEST(Owner, EveryCutOfASmallTensor) {
  for (const ValueType type : kTypes) {
    for (std::int64_t n = 1; n <= 12; ++n) {
      for (std::int64_t other = 0; other <= n; ++other) {
        for (const std::size_t place : {0, 1}) {
          std::vector<TensorSpec> model(2, test::sparse("other", other));
          model[place] = test::sparse("small", n);
          expect_right(model, {.workers = 2, .values = type});
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

// Selections that leave a few elements out, cut in every way that 2 to 64 owners cut them.
TEST(Owner, SmallTensorsOfUpToSixtyFourWorkers) {
  std::vector<TensorSpec> model;
  for (const std::int64_t n : {1, 2, 3, 7, 10, 64, 5, 33, 1}) {
    model.push_back(test::sparse("n" + std::to_string(model.size()), n));
  }
  model.push_back(TensorSpec::of("bias", {10}));
  constexpr std::array kRatios = {0.9, 1.0, 0.97, 0.5, 0.002};
  std::size_t run = 0;
  for (int workers = 2; workers <= 64; workers += workers < 9 ? 1 : test::repeats(1, 5)) {
    // Few workers have every pair of type and ratio, more every type, many the next pair in turn.
    const std::size_t runs = workers <= 8    ? kTypes.size() * kRatios.size()
                             : workers <= 24 ? kTypes.size()
                                             : 1;
    for (std::size_t i = 0; i < runs; ++i, ++run) {
      expect_right(model, {.workers = workers,
                           .values = kTypes[run % kTypes.size()],
                           .ratio = kRatios[run / kTypes.size() % kRatios.size()]});
      if (HasFatalFailure()) return;
    }
  }
}

/// What all workers applied of a tensor in some steps with the same gradients, by element.
std::vector<float> applied(const TensorSpec& spec, int workers, double ratio, int steps,
                           const std::vector<float>& gradient) {
  std::vector<float> parameters(spec.elements());
  const auto errors = test::run_ranks(workers, 60s, [&](Group& group) {
    Exchange exchange(group, {spec}, {.schedule = Schedule(ratio), .momentum = 0.0f},
                      {.algorithm = Algorithm::owner});
    std::vector<float> mine(spec.elements());
    const std::vector<Gradient> list{{0, gradient}};
    const std::vector<std::span<float>> targets{mine};
    for (int step = 0; step < steps; ++step) exchange.step(list, targets, 1.0f);
    if (group.rank() == 0) parameters = mine;
  });
  for (const auto& error : errors) EXPECT_FALSE(error) << error->what();
  return parameters;
}

// Large entries in a quarter of the tensor: that is two of eight owners.
TEST(Owner, EntriesCompeteAcrossTheRangesOfOwners) {
  std::vector<float> gradient(6400);
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    gradient[i] = (i < 1600 ? 1.0f : 0.01f) + 1e-5f * static_cast<float>(i % 97);
  }
  const std::vector<float> moved = applied(test::sparse("t", 6400), 8, 0.1, 1, gradient);
  const auto large =
      std::count_if(moved.begin(), moved.begin() + 1600, [](float x) { return x != 0.0f; });
  const auto small =
      std::count_if(moved.begin() + 1600, moved.end(), [](float x) { return x != 0.0f; });
  EXPECT_EQ(large, 640);
  EXPECT_EQ(small, 0);
}

// One entry a step of a tensor that has 7 owners: in the mean one is sent, and each comes to its
// turn.
TEST(Owner, FewEntriesOfManyOwnersAreSentInTurn) {
  constexpr int kSteps = 300;
  const std::vector<float> gradient(7, 1.0f);
  const std::vector<float> moved = applied(test::sparse("t", 7), 7, 0.01, kSteps, gradient);
  double sum = 0.0;
  for (const float x : moved) {
    EXPECT_GT(x, 0.8f * kSteps);
    sum += static_cast<double>(x);
  }
  EXPECT_GT(sum, 0.9 * 7 * kSteps);
}

TEST(Layout, OwnersTogetherSelectWhatAWorkerSends) {
  constexpr exchange::Load kLoad{.elements = 100'000, .entries = 1'000};
  constexpr int kWorkers = 10;
  std::uint64_t sum = 0;
  for (std::uint64_t rounding = 0; rounding < kWorkers; ++rounding) {
    for (const std::uint64_t received : {1, 9, 990, 2'000, 3'000, 4'000}) {
      const exchange::Inflow inflow{.elements = 10'000, .received = received, .workers = kWorkers};
      sum += exchange::owner_entries(kLoad, inflow, rounding);
    }
  }
  EXPECT_EQ(sum, 10'000u) << "ten times k: no share is lost in rounding";
  EXPECT_EQ(exchange::owner_most(kLoad, 10'000), 400u) << "four even shares";
  EXPECT_EQ(exchange::owner_entries(kLoad, {10'000, 9'000, kWorkers}, 0), 400u);
  EXPECT_EQ(exchange::owner_entries({50, 50}, {5, 0, kWorkers}, 0), 5u) << "sent whole";
}

}  // namespace
}  // namespace dgc
