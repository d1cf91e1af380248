// What goes wrong on one rank is known to all, and nothing is lost.
#include <gtest/gtest.h>

#include <cmath>

#include "dgc/exchange.h"
#include "exchange/shares.h"
#include "support/ranks.h"
#include "support/small_model.h"
#include "support/tampered.h"

namespace dgc {
namespace {

using namespace std::chrono_literals;
using test::gradients_of;
using test::is_message;
using test::kModel;
using test::random_of;
using test::run_ranks;
using test::same_bits;
using test::spans_of;
using test::TamperedGroup;
using test::Tensors;
using test::zeros;

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

}  // namespace
}  // namespace dgc
