#include "dgc/exchange.h"

#include <gtest/gtest.h>

#include <cmath>
#include <mutex>
#include <thread>

#include "dgc/collectives.h"
#include "exchange/hierarchical.h"
#include "exchange/layout.h"
#include "support/helpers.h"
#include "support/ranks.h"
#include "support/tampered.h"

namespace dgc {
namespace {

using namespace std::chrono_literals;
using test::is_message;
using test::run_ranks;
using test::same_bits;
using test::TamperedGroup;
using test::Tensors;

const std::vector<TensorSpec> kModel = {test::sparse("conv", 3000), TensorSpec::of("bias", {33}),
                                        test::sparse("fc", 10'000), test::sparse("tiny", 2)};

std::vector<std::span<float>> spans_of(Tensors& tensors) {
  return {tensors.begin(), tensors.end()};
}
std::vector<Gradient> gradients_of(const Tensors& tensors) {
  std::vector<Gradient> list;
  for (std::size_t i = 0; i < tensors.size(); ++i) list.push_back({i, tensors[i]});
  return list;
}
Tensors zeros(const std::vector<TensorSpec>& model) {
  Tensors tensors;
  for (const TensorSpec& spec : model) tensors.emplace_back(spec.elements(), 0.0f);
  return tensors;
}
std::mt19937 random_of(int rank, int step) {
  return std::mt19937(static_cast<std::uint32_t>(rank * 10'007 + step));
}

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
      Training setup{.algorithm = algorithm, .steps = algorithm == Algorithm::owner ? 500 : 50};
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

/// Rank 1 sends something wrong in the second step; all ranks must fail, keep their parameters and
/// have in u and v what a step that sent nothing leaves.
void expect_rejected(Algorithm algorithm,
                     const std::function<void(std::vector<std::byte>&)>& tamper,
                     const std::string& expected) {
  const int size = 3;
  std::vector<int> checked(size, 0);  // not of bool, whose elements share bytes
  const auto errors = run_ranks(size, 10s, [&](Group& inner) {
    bool armed = false;
    TamperedGroup group(inner, [&](std::vector<std::byte>& bytes) {
      if (armed && inner.rank() == 1 && is_message(bytes)) tamper(bytes);
    });
    State state(kModel, static_cast<std::uint32_t>(group.rank()), size);
    Exchange exchange(group, kModel, {.schedule = Schedule(0.01)}, {.algorithm = algorithm},
                      &state);
    Tensors mine = zeros(kModel);
    auto random = random_of(group.rank(), 0);
    exchange.step(gradients_of(test::gaussian(kModel, random)), spans_of(mine), 1.0f);
    const Tensors before = mine;
    Tensors u, v;
    const Tensors g = test::gaussian(kModel, random);
    for (std::size_t t = 0; t < kModel.size(); ++t) {
      u.emplace_back(state.velocity(t).begin(), state.velocity(t).end());
      v.emplace_back(state.residual(t).begin(), state.residual(t).end());
      for (std::size_t i = 0; i < u[t].size(); ++i) {
        u[t][i] = 0.9f * u[t][i] + g[t][i] * (1.0f / 3.0f);
        v[t][i] += u[t][i];
      }
    }
    armed = true;
    try {
      exchange.step(gradients_of(g), spans_of(mine), 1.0f);
    } catch (const Error&) {
      bool same = true;
      for (std::size_t t = 0; t < kModel.size(); ++t) {
        same = same && same_bits(mine[t], before[t]) && same_bits(state.residual(t), v[t]) &&
               same_bits(state.velocity(t), u[t]);
      }
      checked[static_cast<std::size_t>(group.rank())] = same && state.step() == 1 ? 1 : 0;
      throw;
    }
  });
  bool said = false;
  for (std::size_t r = 0; r < size; ++r) {
    // A rank that had everything may have finished the step; whoever failed has lost nothing.
    if (!errors[r]) continue;
    EXPECT_EQ(checked[r], 1) << "rank " << r << " lost something";
    said = said || std::string(errors[r]->what()).find(expected) != std::string::npos;
  }
  ASSERT_TRUE(errors[0] && errors[2]);
  EXPECT_TRUE(said) << (errors[0] ? errors[0]->what() : "") << "\n"
                    << (errors[2] ? errors[2]->what() : "");
  EXPECT_NE(std::string(errors[0]->what()).find("rank 1"), std::string::npos) << errors[0]->what();
}

TEST(ExchangeFaults, ACorruptedPayloadIsNamedAndNothingIsLost) {
  for (const Algorithm algorithm : {Algorithm::allgather, Algorithm::owner}) {
    expect_rejected(
        algorithm, [](std::vector<std::byte>& bytes) { bytes[bytes.size() / 2] ^= std::byte{1}; },
        "checksum");
  }
}

TEST(ExchangeFaults, AMessageOfAnotherStepIsRefused) {
  expect_rejected(
      Algorithm::allgather, [](std::vector<std::byte>& bytes) { test::change_step(bytes, 0); },
      "with step 0, 1 expected");
}

TEST(ExchangeFaults, DifferentModelsAndOptionsAreFoundByTheHandshake) {
  const auto difference = [](const std::function<void(std::vector<TensorSpec>&, CompressOptions&,
                                                      ExchangeOptions&, State*)>& change) {
    std::string text;
    const auto errors = run_ranks(3, 10s, [&](Group& group) {
      std::vector<TensorSpec> model = kModel;
      CompressOptions compress{.schedule = Schedule(0.01)};
      ExchangeOptions options;
      if (group.rank() == 2) change(model, compress, options, nullptr);
      State state(model, static_cast<std::uint32_t>(group.rank()), 3);
      if (group.rank() == 2) change(model, compress, options, &state);
      Exchange exchange(group, model, compress, options, &state);
    });
    for (const auto& error : errors) {
      EXPECT_TRUE(error);
      if (!error) continue;
      EXPECT_NE(std::string(error->what()).find("rank 2"), std::string::npos) << error->what();
      text = error->what();
    }
    return text;
  };
  EXPECT_NE(difference([](auto& model, auto&, auto&, auto) {
              model[2].shape = {9999};
            }).find("tensor fc 9999 sparse"),
            std::string::npos);
  EXPECT_NE(difference([](auto&, auto& c, auto&, auto) { c.momentum = 0.8f; }).find("momentum 0.8"),
            std::string::npos);
  EXPECT_NE(difference([](auto&, auto& c, auto&, auto) {
              c.schedule = Schedule(0.02);
            }).find("ratio 0.02"),
            std::string::npos);
  EXPECT_NE(difference([](auto&, auto&, auto& o, auto) {
              o.algorithm = Algorithm::owner;
            }).find("algorithm owner"),
            std::string::npos);
  EXPECT_NE(difference([](auto&, auto&, auto&, State* s) {
              if (s != nullptr) s->set_step(5);
            }).find("step 5"),
            std::string::npos);
}

TEST(ExchangeFaults, ADivergedReplicaIsNamed) {
  const auto errors = run_ranks(4, 10s, [&](Group& group) {
    State state(kModel, static_cast<std::uint32_t>(group.rank()), 4);
    Exchange exchange(group, kModel, {}, {.check_parameters_every = 3}, &state);
    Tensors mine = zeros(kModel);
    for (int step = 0; step < 6; ++step) {
      if (step == 1 && group.rank() == 2) mine[2][77] += 1e-6f;
      auto random = random_of(group.rank(), step);
      exchange.step(gradients_of(test::gaussian(kModel, random)), spans_of(mine), 1.0f);
    }
  });
  for (const auto& error : errors) {
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), ErrorCode::diverged);
    EXPECT_EQ(error->subject(), "rank 2");
    EXPECT_NE(std::string(error->what()).find("step 3"), std::string::npos) << error->what();
  }
}

// Also where the run is shorter than the interval, and after a resume.
TEST(ExchangeFaults, ParametersAreComparedAfterTheFirstStepAndOnRequest) {
  for (const bool at_first : {true, false}) {
    const auto errors = run_ranks(3, 10s, [&](Group& group) {
      State state(kModel, static_cast<std::uint32_t>(group.rank()), 3);
      state.set_step(41);
      Exchange exchange(group, kModel, {}, {}, &state);
      Tensors mine = zeros(kModel);
      if (at_first && group.rank() == 2) mine[0][7] = 1e-6f;
      for (int step = 0; step < 3; ++step) {
        auto random = random_of(group.rank(), step);
        exchange.step(gradients_of(test::gaussian(kModel, random)), spans_of(mine), 1.0f);
        EXPECT_FALSE(at_first && step > 0) << "the step after the first found nothing";
      }
      exchange.check_parameters(spans_of(mine));
      if (group.rank() == 2) mine[0][7] += 1e-6f;
      exchange.check_parameters(spans_of(mine));
    });
    for (const auto& error : errors) {
      ASSERT_TRUE(error);
      EXPECT_EQ(error->code(), ErrorCode::diverged);
      EXPECT_EQ(error->subject(), "rank 2");
      const std::string step = at_first ? "step 42" : "step 44";
      EXPECT_NE(std::string(error->what()).find(step), std::string::npos) << error->what();
    }
  }
}

// Whoever tries again on the same group reads why that cannot work.
TEST(ExchangeFaults, ASecondConstructionSaysThatTheGroupIsDead) {
  const auto errors = run_ranks(2, 10s, [&](Group& group) {
    State state(kModel, static_cast<std::uint32_t>(group.rank()), 2);
    EXPECT_THROW(Exchange(group, kModel, {.threads = 0}, {}, &state), Error);
    Exchange right(group, kModel, {}, {}, &state);
  });
  for (const auto& error : errors) {
    ASSERT_TRUE(error);
    EXPECT_NE(std::string(error->what()).find("the group ended earlier: "), std::string::npos);
    EXPECT_NE(std::string(error->what()).find("threads"), std::string::npos) << error->what();
  }
}

TEST(ExchangeFaults, ABadGradientOnOneRankIsReadByAll) {
  const auto errors = run_ranks(3, 10s, [&](Group& group) {
    State state(kModel, static_cast<std::uint32_t>(group.rank()), 3);
    Exchange exchange(group, kModel, {}, {}, &state);
    Tensors mine = zeros(kModel);
    auto random = random_of(group.rank(), 0);
    Tensors g = test::gaussian(kModel, random);
    if (group.rank() == 1) g[2][123] = std::numeric_limits<float>::quiet_NaN();
    exchange.step(gradients_of(g), spans_of(mine), 1.0f);
  });
  for (std::size_t r = 0; r < 3; ++r) {
    ASSERT_TRUE(errors[r]);
    EXPECT_NE(std::string(errors[r]->what()).find("nan at index 123"), std::string::npos)
        << errors[r]->what();
  }
}

TEST(ExchangeFaults, ASumThatOverflowsIsNotApplied) {
  for (const auto& way : {std::pair{Algorithm::automatic, ValueType::fp32},
                          std::pair{Algorithm::dense, ValueType::fp32},
                          std::pair{Algorithm::dense, ValueType::bf16}}) {
    std::vector<Tensors> parameters(2);
    const auto errors = run_ranks(2, 10s, [&](Group& group) {
      State state(kModel, static_cast<std::uint32_t>(group.rank()), 2);
      Exchange exchange(group, kModel, {.momentum = 0.9f},
                        {.algorithm = way.first, .dense_transport = way.second}, &state);
      Tensors& mine = parameters[static_cast<std::size_t>(group.rank())] = zeros(kModel);
      Tensors g = zeros(kModel);
      g[1][5] = 3e38f;
      // Half of it from each; with momentum, two halves are too much.
      exchange.step(gradients_of(g), spans_of(mine), 1.0f);
      exchange.step(gradients_of(g), spans_of(mine), 1.0f);
    });
    for (std::size_t r = 0; r < 2; ++r) {
      ASSERT_TRUE(errors[r]);
      EXPECT_NE(std::string(errors[r]->what()).find("over all ranks is"), std::string::npos)
          << errors[r]->what();
      EXPECT_TRUE(std::isfinite(parameters[r][1][5]));
    }
  }
}

// Wrong calls of one rank are found before anything is sent, and the others read why.
TEST(ExchangeFaults, WrongArgumentsOfOneRankStopEverybodyBeforeTheStep) {
  const auto expect_all = [](ErrorCode code,
                             const std::function<void(Tensors & g, std::vector<Gradient>&,
                                                      Tensors & mine)>& spoil) {
    for (const Algorithm algorithm : {Algorithm::automatic, Algorithm::owner, Algorithm::dense}) {
      const auto errors = run_ranks(3, 10s, [&](Group& group) {
        State state(kModel, static_cast<std::uint32_t>(group.rank()), 3);
        Exchange exchange(group, kModel, {}, {.algorithm = algorithm}, &state);
        Tensors mine = zeros(kModel);
        auto random = random_of(group.rank(), 0);
        Tensors g = test::gaussian(kModel, random);
        std::vector<Gradient> gradients = gradients_of(g);
        if (group.rank() == 1) spoil(g, gradients, mine);
        try {
          exchange.step(gradients, spans_of(mine), 1.0f);
        } catch (const Error&) {
          EXPECT_EQ(state.step(), 0u);
          throw;
        }
      });
      ASSERT_TRUE(errors[0] && errors[1] && errors[2]);
      EXPECT_EQ(errors[1]->code(), code) << errors[1]->what();
      EXPECT_EQ(errors[0]->code(), ErrorCode::peer_failed) << errors[0]->what();
    }
  };
  expect_all(ErrorCode::invalid_argument,
             [](Tensors&, auto& list, Tensors&) { list[3].tensor = 1000; });
  expect_all(ErrorCode::shape_mismatch,
             [](Tensors&, auto& list, Tensors&) { list[2].values = list[2].values.first(5); });
  expect_all(ErrorCode::shape_mismatch, [](Tensors&, auto&, Tensors& mine) { mine[0].resize(7); });
}

TEST(ExchangeFaults, BadOptionsOfOneRankDoNotLeaveTheOthersWaiting) {
  const auto errors = run_ranks(3, 10s, [&](Group& group) {
    State state(kModel, static_cast<std::uint32_t>(group.rank()), 3);
    CompressOptions compress;
    if (group.rank() == 2) compress.threads = 0;
    Exchange exchange(group, kModel, compress, {}, &state);
  });
  for (const auto& error : errors) {
    ASSERT_TRUE(error);
    EXPECT_NE(std::string(error->what()).find("threads"), std::string::npos) << error->what();
  }
}

TEST(Topology, UnequalHostsAreRefused) {
  const auto errors = run_ranks(
      3, 10s, [&](Group& group) { exchange::find_topology(group, group.rank() == 2 ? "b" : "a"); });
  for (const auto& error : errors) {
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), ErrorCode::configuration_mismatch);
  }
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
