// Global momentum correction: m/N of each applied sum goes back into every worker's residual (or
// all of m into its owner's).
#include <gtest/gtest.h>

#include <mutex>

#include "dgc/exchange.h"
#include "support/helpers.h"
#include "support/ranks.h"

namespace dgc {
namespace {

using namespace std::chrono_literals;
using test::run_ranks;
using test::same_bits;
using test::Tensors;

constexpr int kWorkers = 4;
constexpr float kMomentum = 0.9f;
const std::vector<TensorSpec> kModel = {test::sparse("conv", 3000), TensorSpec::of("bias", {33}),
                                        test::sparse("fc", 1000)};

using Sums = std::vector<std::vector<double>>;
Sums zeros() {
  Sums sums;
  for (const TensorSpec& spec : kModel) sums.emplace_back(spec.elements(), 0.0);
  return sums;
}

struct Way {
  Algorithm algorithm = Algorithm::allgather;
  bool nesterov = false;
  ValueType values = ValueType::fp32;
  ValueType transport = ValueType::fp32;
  ValueType dense_values = ValueType::fp32;
};

Tensors gradients_at(int rank, int step) {
  std::mt19937 random(static_cast<std::uint32_t>(rank * 10'007 + step));
  return test::gaussian(kModel, random);
}

struct Outcome {
  Tensors applied;                    // sum over all steps, the same on all ranks
  Sums residuals;                     // sum over all ranks
  std::vector<Tensors> every_update;  // by step, of rank 0
};

/// Trains on random gradients. What is applied is added up.
Outcome train(const Way& way, double ratio, int steps) {
  CompressOptions compress{.schedule = Schedule(ratio), .momentum = kMomentum};
  compress.nesterov = way.nesterov;
  compress.momentum_correction = MomentumCorrection::global;
  compress.values = way.values;
  compress.dense_values = way.dense_values;
  Outcome outcome{.applied = {}, .residuals = zeros(), .every_update = {}};
  std::mutex mutex;
  const auto errors = run_ranks(kWorkers, 60s, [&](Group& group) {
    ExchangeOptions options{.algorithm = way.algorithm, .dense_transport = way.transport};
    options.host = "host" + std::to_string(group.rank() / 2);
    Exchange exchange(group, kModel, compress, options);
    EXPECT_FALSE(exchange.state().has_velocity());
    Tensors mine;
    for (const TensorSpec& spec : kModel) mine.emplace_back(spec.elements(), 0.0f);
    for (int step = 0; step < steps; ++step) {
      const Tensors g = gradients_at(group.rank(), step);
      std::vector<Gradient> list;
      for (std::size_t t = 0; t < g.size(); ++t) list.push_back({t, g[t]});
      const Tensors before = mine;
      const std::vector<std::span<float>> targets(mine.begin(), mine.end());
      exchange.step(list, targets, 1.0f);
      if (group.rank() != 0) continue;
      Tensors& update = outcome.every_update.emplace_back(mine);
      for (std::size_t t = 0; t < mine.size(); ++t) {
        for (std::size_t i = 0; i < mine[t].size(); ++i) update[t][i] -= before[t][i];
      }
    }
    const std::scoped_lock lock(mutex);
    if (outcome.applied.empty()) outcome.applied = mine;
    for (std::size_t t = 0; t < mine.size(); ++t) {
      EXPECT_TRUE(same_bits(mine[t], outcome.applied[t]));
      const auto v = exchange.state().residual(t);
      // Under hierarchical a rank has its share of the host's residual.
      for (std::size_t i = 0; i < v.size(); ++i) {
        const bool second = way.algorithm == Algorithm::hierarchical && group.rank() % 2 == 1;
        outcome.residuals[t][i + (second ? outcome.residuals[t].size() - v.size() : 0)] +=
            static_cast<double>(v[i]);
      }
    }
  });
  for (const auto& error : errors) EXPECT_FALSE(error) << error->what();
  return outcome;
}

const Way kWays[] = {
    {Algorithm::allgather},
    {Algorithm::allgather, true},
    {Algorithm::allgather, false, ValueType::fp16},
    {Algorithm::allgather, true, ValueType::int8},
    {Algorithm::allgather, false, ValueType::sign},
    {Algorithm::owner},
    {Algorithm::owner, true, ValueType::fp16},
    {Algorithm::owner, false, ValueType::int8},
    {Algorithm::owner, false, ValueType::int8, ValueType::fp32, ValueType::int8},
    {Algorithm::owner, true, ValueType::fp16, ValueType::fp32, ValueType::sign},
    {Algorithm::allgather, false, ValueType::fp16, ValueType::fp32, ValueType::int8},
    {Algorithm::dense, false},
    {Algorithm::dense, true, ValueType::fp32, ValueType::fp16},
    {Algorithm::hierarchical},
    {Algorithm::hierarchical, true, ValueType::fp16},
};
std::string text_of(const Way& way) {
  return std::string(name_of(way.algorithm)) + " " + std::string(name_of(way.values)) +
         (way.nesterov ? " nesterov" : "");
}

// Of what is applied, m comes back: gradients = (1 - m) · applied + residuals, to the last entry.
TEST(GlobalMomentum, WhatWentInIsAppliedOrStillInAResidual) {
  const int steps = test::repeats(200, 40);
  Sums expected = zeros();
  for (int rank = 0; rank < kWorkers; ++rank) {
    for (int step = 0; step < steps; ++step) {
      const Tensors g = gradients_at(rank, step);
      for (std::size_t t = 0; t < g.size(); ++t) {
        for (std::size_t i = 0; i < g[t].size(); ++i) {
          expected[t][i] += static_cast<double>(g[t][i]) / kWorkers;
        }
      }
    }
  }
  for (const Way& way : kWays) {
    SCOPED_TRACE(text_of(way));
    const Outcome outcome = train(way, 0.02, steps);
    for (std::size_t t = 0; t < kModel.size(); ++t) {
      for (std::size_t i = 0; i < expected[t].size(); ++i) {
        const double applied = static_cast<double>(outcome.applied[t][i]);
        ASSERT_NEAR((1.0 - kMomentum) * applied + outcome.residuals[t][i], expected[t][i], 2e-3)
            << kModel[t].name << " " << i;
      }
    }
  }
}

// Tensors that are sent whole (here all of them) see momentum SGD, step by step.
TEST(GlobalMomentum, AtRatioOneItIsMomentumSgd) {
  constexpr int kSteps = 20;
  for (const Way& way : kWays) {
    if (way.values != ValueType::fp32 || way.transport != ValueType::fp32) continue;
    SCOPED_TRACE(text_of(way));
    const Outcome outcome = train(way, 1.0, kSteps);
    Sums velocity = zeros();
    for (int step = 0; step < kSteps; ++step) {
      Sums mean = zeros();
      for (int rank = 0; rank < kWorkers; ++rank) {
        const Tensors g = gradients_at(rank, step);
        for (std::size_t t = 0; t < g.size(); ++t) {
          for (std::size_t i = 0; i < g[t].size(); ++i) {
            mean[t][i] += static_cast<double>(g[t][i]) / kWorkers;
          }
        }
      }
      for (std::size_t t = 0; t < kModel.size(); ++t) {
        for (std::size_t i = 0; i < mean[t].size(); ++i) {
          const double m = kMomentum;
          velocity[t][i] = m * velocity[t][i] + mean[t][i];
          const double expected = way.nesterov ? mean[t][i] + m * velocity[t][i] : velocity[t][i];
          ASSERT_NEAR(outcome.every_update[static_cast<std::size_t>(step)][t][i], expected, 1e-4)
              << step << " " << kModel[t].name << " " << i;
        }
      }
    }
  }
}

// With a Compressor alone, the caller says what was applied.
TEST(GlobalMomentum, TheCompressorTakesItsShareOfWhatWasApplied) {
  CompressOptions options{.schedule = Schedule(0.01), .momentum = kMomentum};
  options.momentum_correction = MomentumCorrection::global;
  test::Worker worker(kModel, options, 0, kWorkers);
  std::mt19937 random(3);
  const Tensors g = test::gaussian(kModel, random);
  const std::vector<std::byte> message = worker.step(g);
  const Tensors before = {{worker.state.residual(0).begin(), worker.state.residual(0).end()}};
  worker.compressor.applied(CheckedMessage(message));
  std::size_t changed = 0;
  for (const Entries& frame : decode_entries(CheckedMessage(message), 3000)) {
    if (frame.tensor != 0) continue;
    for (std::size_t i = 0; i < frame.indices.size(); ++i) {
      const float share = kMomentum / kWorkers * frame.values[i];
      EXPECT_FLOAT_EQ(worker.state.residual(0)[frame.indices[i]], share);
      ++changed;
    }
  }
  EXPECT_EQ(changed, 30u);
}

TEST(GlobalMomentum, ARestoredStepLeavesTheResidualAsAccumulated) {
  for (const bool nesterov : {false, true}) {
    CompressOptions options{.schedule = Schedule(0.01), .momentum = kMomentum};
    options.momentum_correction = MomentumCorrection::global;
    options.nesterov = nesterov;
    State state(kModel, 0, kWorkers, false);
    Compressor compressor(state, options);
    std::mt19937 random(4);
    Sums expected = zeros();
    for (int step = 0; step < 5; ++step) {
      const Tensors g = test::gaussian(kModel, random);
      std::vector<Gradient> list;
      for (std::size_t t = 0; t < g.size(); ++t) list.push_back({t, g[t]});
      std::vector<std::byte> message(compressor.bound());
      compressor.compress(list, message);
      compressor.restore();
      for (std::size_t t = 0; t < g.size(); ++t) {
        for (std::size_t i = 0; i < g[t].size(); ++i) {
          expected[t][i] += static_cast<double>(g[t][i]) / kWorkers;
          ASSERT_NEAR(state.residual(t)[i], expected[t][i], 1e-5) << t << " " << i;
        }
      }
    }
  }
}

TEST(GlobalMomentum, NamesAndTheSwitchOfEarlierVersionsAreRead) {
  for (const MomentumCorrection one : momentum_corrections()) {
    EXPECT_EQ(parse_momentum_correction(name_of(one)), one);
  }
  EXPECT_EQ(parse_momentum_correction("true"), MomentumCorrection::local);
  EXPECT_EQ(parse_momentum_correction("false"), MomentumCorrection::off);
  EXPECT_EQ(test::code_of([] { parse_momentum_correction("globe"); }), ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace dgc
