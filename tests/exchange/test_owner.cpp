// The algorithm `owner` on small tensors, where a slice may hold nearly all of a tensor.
#include <gtest/gtest.h>

#include "dgc/exchange.h"
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

}  // namespace
}  // namespace dgc
