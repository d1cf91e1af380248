#include "dgc/exchange.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>
#include <thread>

#include "dgc/collectives.h"
#include "exchange/layout.h"
#include "support/ranks.h"
#include "support/small_model.h"

namespace dgc {
namespace {

using namespace std::chrono_literals;
using test::gradients_of;
using test::kModel;
using test::random_of;
using test::run_ranks;
using test::same_bits;
using test::spans_of;
using test::Tensors;
using test::zeros;

struct Training {
  Algorithm algorithm = Algorithm::allgather;
  CompressOptions compress = {.schedule = Schedule(0.01)};
  ExchangeOptions exchange = {};
  int steps = 5;
  int workers_per_host = 1;
};

/// Trains on random gradients and returns the parameters of every rank. `inspect` sees each rank's
/// state at the end.
std::vector<Tensors> train(int size, Training setup,
                           const std::function<void(Group&, State&)>& inspect = {}) {
  std::vector<Tensors> parameters(static_cast<std::size_t>(size));
  setup.exchange.algorithm = setup.algorithm;
  const auto errors = run_ranks(size, 60s, [&](Group& group) {
    ExchangeOptions options = setup.exchange;
    options.host = "host" + std::to_string(group.rank() / setup.workers_per_host);
    Exchange exchange(group, kModel, setup.compress, options);
    Tensors mine = zeros(kModel);
    for (int step = 0; step < setup.steps; ++step) {
      auto random = random_of(group.rank(), step);
      const Tensors g = test::gaussian(kModel, random);
      exchange.step(gradients_of(g), spans_of(mine), 1.0f);
    }
    if (inspect) inspect(group, exchange.state());
    parameters[static_cast<std::size_t>(group.rank())] = std::move(mine);
  });
  for (const auto& error : errors) EXPECT_FALSE(error) << error->what();
  return parameters;
}

void expect_identical(const std::vector<Tensors>& parameters) {
  for (const Tensors& other : parameters) {
    for (std::size_t t = 0; t < other.size(); ++t)
      EXPECT_TRUE(same_bits(other[t], parameters[0][t]));
  }
}

TEST(Exchange, AllRanksHoldTheSameBitsForEveryAlgorithm) {
  for (const Algorithm algorithm : {Algorithm::automatic, Algorithm::allgather, Algorithm::owner,
                                    Algorithm::dense, Algorithm::hierarchical}) {
    for (const int size : {1, 2, 3, 4, 6}) {
      for (const ValueType type : {ValueType::fp32, ValueType::fp16, ValueType::int8}) {
        SCOPED_TRACE(std::string(name_of(algorithm)) + " " + std::to_string(size));
        Training setup{.algorithm = algorithm};
        setup.compress.values = type;
        setup.exchange.check_parameters_every = 1;
        setup.workers_per_host = algorithm == Algorithm::hierarchical && size % 2 == 0 ? 2 : 1;
        expect_identical(train(size, setup));
      }
    }
  }
}

// The sum is that of the messages, added in the order of the ranks.
TEST(Exchange, AllgatherEqualsTheSumOfTheWorkersMessages) {
  const int size = 4;
  const auto actual = train(size, {.algorithm = Algorithm::allgather});
  std::vector<std::unique_ptr<test::Worker>> workers;
  for (std::uint32_t r = 0; r < size; ++r) {
    workers.push_back(std::make_unique<test::Worker>(
        kModel, CompressOptions{.schedule = Schedule(0.01)}, r, size));
  }
  Tensors expected = zeros(kModel);
  for (int step = 0; step < 5; ++step) {
    for (int r = 0; r < size; ++r) {
      auto random = random_of(r, step);
      decode_add(CheckedMessage(
                     workers[static_cast<std::size_t>(r)]->step(test::gaussian(kModel, random))),
                 spans_of(expected));
    }
  }
  for (std::size_t t = 0; t < kModel.size(); ++t) EXPECT_TRUE(same_bits(actual[0][t], expected[t]));
}

TEST(Exchange, DenseAndAutomaticApplyTheSameEntries) {
  const auto reference = train(4, {.algorithm = Algorithm::allgather});
  for (const Algorithm algorithm : {Algorithm::dense, Algorithm::automatic}) {
    const auto actual = train(4, {.algorithm = algorithm});
    for (std::size_t t = 0; t < kModel.size(); ++t) {
      for (std::size_t i = 0; i < actual[0][t].size(); ++i) {
        ASSERT_NEAR(actual[0][t][i], reference[0][t][i], 1e-5f);
        ASSERT_EQ(actual[0][t][i] == 0.0f, reference[0][t][i] == 0.0f);
      }
    }
  }
}

// With hosts of one worker there is nothing to reduce: hierarchical is allgather.
TEST(Exchange, HierarchicalWithOneWorkerPerHostIsAllgather) {
  const auto reference = train(3, {.algorithm = Algorithm::allgather});
  const auto actual = train(3, {.algorithm = Algorithm::hierarchical});
  for (std::size_t t = 0; t < kModel.size(); ++t)
    EXPECT_TRUE(same_bits(actual[0][t], reference[0][t]));
}

TEST(Exchange, HierarchicalAtRatioOneAveragesEverything) {
  Training setup{.algorithm = Algorithm::hierarchical, .steps = 1, .workers_per_host = 2};
  setup.compress.schedule = Schedule(1.0);
  const auto actual = train(6, setup);
  std::vector<Tensors> g;
  for (int r = 0; r < 6; ++r) {
    auto random = random_of(r, 0);
    g.push_back(test::gaussian(kModel, random));
  }
  for (std::size_t t = 0; t < kModel.size(); ++t) {
    for (std::size_t i = 0; i < actual[0][t].size(); ++i) {
      float mean = 0.0f;
      for (const Tensors& one : g) mean += one[t][i] / 6.0f;
      ASSERT_NEAR(actual[0][t][i], mean, 1e-5f);
    }
  }
}

// The norm is that of the host's mean over all shares, and the threshold that of N = hosts.
TEST(Exchange, HierarchicalClipsByTheNormOfTheWholeGradient) {
  Training setup{.algorithm = Algorithm::hierarchical, .steps = 1, .workers_per_host = 2};
  setup.compress.schedule = Schedule(1.0);
  setup.compress.momentum = 0.0f;
  const auto free = train(4, setup);
  setup.compress.clip_norm = 1.0;
  const auto clipped = train(4, setup);
  expect_identical(clipped);
  // Both hosts clip, each by its own factor; with one host there is one, and it is exact.
  setup.workers_per_host = 4;
  const auto one_host = train(4, setup);
  double squares = 0.0;
  for (const auto& tensor : one_host[0]) {
    for (const float x : tensor) squares += static_cast<double>(x) * x;
  }
  EXPECT_NEAR(std::sqrt(squares), 1.0, 1e-4);
  EXPECT_LT(std::fabs(clipped[0][0][0]), std::fabs(free[0][0][0]));
}

// Nothing is lost: what all ranks put in equals what was applied plus all residuals. Masking is
// off, because it drops velocity on purpose.
TEST(Exchange, WhatWentInIsAppliedOrStillInAResidual) {
  for (const auto& [algorithm, transport] :
       {std::pair{Algorithm::owner, ValueType::fp32},
        std::pair{Algorithm::allgather, ValueType::fp32},
        std::pair{Algorithm::dense, ValueType::fp32}, std::pair{Algorithm::dense, ValueType::fp16},
        std::pair{Algorithm::dense, ValueType::bf16}}) {
    for (const ValueType values :
         {ValueType::fp32, ValueType::fp16, ValueType::int8, ValueType::sign}) {
      SCOPED_TRACE(std::string(name_of(algorithm)) + " " + std::string(name_of(values)));
      const int size = 4;
      const bool long_run = algorithm == Algorithm::owner;
      Training setup{.algorithm = algorithm,
                     .steps = long_run ? test::repeats(500, 50) : test::repeats(50, 20)};
      setup.compress.momentum = 0.9f;
      setup.compress.masking = false;
      setup.compress.values = values;
      setup.exchange.dense_transport = transport;
      std::vector<std::vector<double>> total;
      for (const TensorSpec& spec : kModel) total.emplace_back(spec.elements(), 0.0);
      std::mutex mutex;
      const auto parameters = train(size, setup, [&](Group&, State& state) {
        const std::lock_guard lock(mutex);
        for (std::size_t t = 0; t < kModel.size(); ++t) {
          for (std::size_t i = 0; i < total[t].size(); ++i)
            total[t][i] += static_cast<double>(state.residual(t)[i]);
        }
      });
      for (std::size_t t = 0; t < kModel.size(); ++t) {
        for (std::size_t i = 0; i < total[t].size(); ++i)
          total[t][i] += static_cast<double>(parameters[0][t][i]);
      }
      std::vector<std::vector<double>> expected;
      for (const TensorSpec& spec : kModel) expected.emplace_back(spec.elements(), 0.0);
      for (int r = 0; r < size; ++r) {
        std::vector<std::vector<double>> u;
        for (const TensorSpec& spec : kModel) u.emplace_back(spec.elements(), 0.0);
        for (int step = 0; step < setup.steps; ++step) {
          auto random = random_of(r, step);
          const Tensors g = test::gaussian(kModel, random);
          for (std::size_t t = 0; t < kModel.size(); ++t) {
            for (std::size_t i = 0; i < u[t].size(); ++i) {
              u[t][i] = static_cast<double>(0.9f) * u[t][i] + static_cast<double>(g[t][i]) / size;
              expected[t][i] += u[t][i];
            }
          }
        }
      }
      for (std::size_t t = 0; t < kModel.size(); ++t) {
        for (std::size_t i = 0; i < total[t].size(); ++i) {
          ASSERT_NEAR(total[t][i], expected[t][i], 2e-3) << kModel[t].name << " " << i;
        }
      }
    }
  }
}

TEST(Exchange, OwnerTrafficStaysFlatAndAllgatherGrows) {
  const auto received = [](Algorithm algorithm, int size) {
    std::uint64_t bytes = 0;
    run_ranks(size, 60s, [&](Group& group) {
      const std::vector<TensorSpec> model = {test::sparse("w", 200'000)};
      State state(model, static_cast<std::uint32_t>(group.rank()),
                  static_cast<std::uint32_t>(size));
      Exchange exchange(group, model, {.schedule = Schedule(0.01)}, {.algorithm = algorithm},
                        &state);
      Tensors mine = zeros(model);
      auto random = random_of(group.rank(), 0);
      const Collected sums =
          exchange.step(gradients_of(test::gaussian(model, random)), spans_of(mine), 1.0f);
      if (group.rank() != 0) return;
      for (const Phase& phase : sums.phases) bytes += phase.traffic.bytes_received;
    });
    return static_cast<double>(bytes);
  };
  EXPECT_LT(received(Algorithm::owner, 16), 1.5 * received(Algorithm::owner, 4));
  EXPECT_GT(received(Algorithm::allgather, 16), 4.5 * received(Algorithm::allgather, 4));
}

TEST(Exchange, SeveralBucketsBesideTheCallersThread) {
  const auto reference = train(3, {.algorithm = Algorithm::allgather});
  for (const Algorithm algorithm : {Algorithm::allgather, Algorithm::owner, Algorithm::dense}) {
    std::vector<Tensors> parameters(3);
    const auto errors = run_ranks(3, 60s, [&](Group& group) {
      // Last layers first, as backward gives them.
      Exchange exchange(group, kModel, {.schedule = Schedule(0.01)}, {.algorithm = algorithm},
                        nullptr, {{3}, {1, 2}, {0}});
      Tensors mine = zeros(kModel);
      for (int step = 0; step < 5; ++step) {
        auto random = random_of(group.rank(), step);
        const Tensors g = test::gaussian(kModel, random);
        const std::vector<Gradient> all = gradients_of(g);
        exchange.submit(std::span(all).subspan(3, 1));
        exchange.submit(std::span(all).subspan(1, 2));
        exchange.submit(std::span(all).subspan(0, 1));
        EXPECT_THROW(exchange.submit({}), Error);
        const Collected sums = exchange.finish();
        exchange.apply(sums, spans_of(mine), 1.0f);
        exchange.commit(sums, spans_of(mine));
      }
      parameters[static_cast<std::size_t>(group.rank())] = mine;
    });
    for (const auto& error : errors) EXPECT_FALSE(error) << error->what();
    expect_identical(parameters);
    if (algorithm != Algorithm::allgather) continue;
    for (std::size_t t = 0; t < kModel.size(); ++t)
      EXPECT_TRUE(same_bits(parameters[0][t], reference[0][t]));
  }
}

// A rank that lacks a gradient goes on as with one of zero, where another rank has one. What no
// rank has is left as it is: parameters, u and v.
TEST(Exchange, TensorsWithoutAGradient) {
  for (const Algorithm algorithm : algorithms()) {
    for (const bool skips : {false, true}) {
      SCOPED_TRACE(std::string(name_of(algorithm)));
      std::vector<Tensors> lacking(3);
      std::vector<Tensors> zero(3);
      for (auto* const parameters : {&lacking, &zero}) {
        const auto errors = run_ranks(3, 60s, [&](Group& group) {
          Exchange exchange(group, kModel, {.schedule = Schedule(0.01)},
                            {.algorithm = algorithm, .skip_nonfinite = skips});
          Tensors mine = zeros(kModel);
          for (int step = 0; step < 4; ++step) {
            auto random = random_of(group.rank(), step);
            Tensors g = test::gaussian(kModel, random);
            std::vector<Gradient> some = gradients_of(g);
            if (step >= 2) {
              // "fc" is on rank 0 only.
              if (group.rank() != 0) std::fill(g[2].begin(), g[2].end(), 0.0f);
              if (group.rank() != 0 && parameters == &lacking) some.erase(some.begin() + 2);
              some.erase(some.begin());  // "conv" on none
            }
            const Tensors before = mine;
            const auto v = std::as_const(exchange).state().residual(0);
            const std::vector<float> residual(v.begin(), v.end());
            const Collected sums = exchange.step(some, spans_of(mine), 1.0f);
            EXPECT_EQ(sums.present[0], step < 2);
            EXPECT_TRUE(sums.present[2]);
            if (step >= 2) {
              EXPECT_TRUE(same_bits(mine[0], before[0]));
              EXPECT_TRUE(same_bits(std::as_const(exchange).state().residual(0), residual));
            }
          }
          (*parameters)[static_cast<std::size_t>(group.rank())] = mine;
        });
        for (const auto& error : errors) EXPECT_FALSE(error) << error->what();
        expect_identical(*parameters);
      }
      for (std::size_t t = 0; t < kModel.size(); ++t)
        EXPECT_TRUE(same_bits(lacking[0][t], zero[0][t])) << kModel[t].name;
    }
  }
}

TEST(Exchange, AStepThatIsNotFiniteAnywhereIsSkippedEverywhere) {
  for (const Algorithm algorithm : algorithms()) {
    SCOPED_TRACE(std::string(name_of(algorithm)));
    const auto errors = run_ranks(3, 60s, [&](Group& group) {
      Exchange exchange(group, kModel, {.schedule = Schedule(0.01)},
                        {.algorithm = algorithm, .skip_nonfinite = true});
      Tensors mine = zeros(kModel);
      for (int step = 0; step < 3; ++step) {
        auto random = random_of(group.rank(), step);
        Tensors g = test::gaussian(kModel, random);
        const bool bad = step == 1;
        if (bad && group.rank() == 2) g[0][7] = std::numeric_limits<float>::infinity();
        const Tensors before = mine;
        const auto v = std::as_const(exchange).state().residual(2);
        const std::vector<float> residual(v.begin(), v.end());
        const Collected sums = exchange.step(gradients_of(g), spans_of(mine), 1.0f);
        EXPECT_EQ(sums.skipped, bad);
        if (!bad) continue;
        for (std::size_t t = 0; t < kModel.size(); ++t) EXPECT_TRUE(same_bits(mine[t], before[t]));
        EXPECT_TRUE(same_bits(std::as_const(exchange).state().residual(2), residual));
      }
      EXPECT_EQ(exchange.state().step(), 2u);
    });
    for (const auto& error : errors) EXPECT_FALSE(error) << error->what();
  }
}

TEST(Exchange, OneRankThatWantsToStopTellsAll) {
  const auto errors = run_ranks(3, 60s, [&](Group& group) {
    Exchange exchange(group, kModel, {.schedule = Schedule(0.01)});
    Tensors mine = zeros(kModel);
    const Tensors g = zeros(kModel);
    EXPECT_FALSE(exchange.step(gradients_of(g), spans_of(mine), 1.0f).stop);
    if (group.rank() == 1) exchange.request_stop();
    EXPECT_TRUE(exchange.step(gradients_of(g), spans_of(mine), 1.0f).stop);
  });
  for (const auto& error : errors) EXPECT_FALSE(error) << error->what();
}

TEST(Layout, CutsCoverEveryTensorAndShareTheLoad) {
  const std::vector<exchange::Load> tensors = {
      {1000, 10}, {7, 7}, {1'000'000, 1000}, {1, 1}, {0, 0}};
  for (const int owners : {1, 2, 3, 8, 33}) {
    const auto cuts = exchange::owner_cuts(tensors, owners);
    std::vector<double> load(static_cast<std::size_t>(owners), 0.0);
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      EXPECT_EQ(cuts[t].front(), 0u);
      EXPECT_EQ(cuts[t].back(), tensors[t].elements);
      for (std::size_t o = 0; o < load.size(); ++o) {
        ASSERT_LE(cuts[t][o], cuts[t][o + 1]);
        if (tensors[t].elements == 0) continue;
        load[o] += static_cast<double>(cuts[t][o + 1] - cuts[t][o]) /
                   static_cast<double>(tensors[t].elements) *
                   static_cast<double>(tensors[t].entries);
      }
    }
    for (const double l : load) EXPECT_NEAR(l, 1018.0 / owners, 3.0);
  }
}

// A message travels in any case; dense slices have to be worth another round.
TEST(Exchange, AutoSendsFewDenseBytesWithTheMessage) {
  const auto choice_for = [](std::int64_t bias, const char* link, bool reselect = false) {
    std::string choice;
    const std::vector<TensorSpec> model{TensorSpec::of("weight", {100, 100}),
                                        TensorSpec::of("bias", {bias})};
    const auto errors = run_ranks(4, std::chrono::seconds(20), [&](Group& group) {
      Exchange exchange(group, model, {.schedule = Schedule(0.01)},
                        {.link = parse_link("link", link), .reselect = reselect});
      EXPECT_EQ(exchange.costs().link, parse_link("link", link));
      EXPECT_FALSE(exchange.costs().measured);
      const Tensors values = zeros(model);
      Tensors mine = zeros(model);
      const Traffic before = group.traffic();
      const Collected sums = exchange.step(gradients_of(values), spans_of(mine), 1.0f);
      if (group.rank() != 0) return;
      choice = fmt::format("{}, messages to each peer {}", sums.choice,
                           (group.traffic() - before).messages_sent / 3);
    });
    for (const auto& error : errors) EXPECT_FALSE(error) << error->what();
    return choice;
  };
  EXPECT_EQ(choice_for(1000, "1Gbps,1ms"), "allgather 2, dense 0, messages to each peer 1");
  EXPECT_EQ(choice_for(100'000, "1Gbps,1ms"), "allgather 1, dense 1, messages to each peer 2");
  EXPECT_EQ(choice_for(100'000, "1Gbps,100ms"), "allgather 2, dense 0, messages to each peer 1")
      << "a round is dear";
  EXPECT_EQ(choice_for(100'000, "1Mbps,100ms"), "allgather 1, dense 1, messages to each peer 2");
  EXPECT_EQ(choice_for(100'000, "1Mbps,0ms", true),
            "allgather 0, dense 0, owner 2, messages to each peer 2");
}

}  // namespace
}  // namespace dgc
