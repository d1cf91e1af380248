// How much a run sends where nobody says it in so many words: defaults and budgets.
#include "train/budget.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "dgc/error.h"
#include "train/defaults.h"
#include "train/recipe.h"

namespace dgc::test {
namespace {

using namespace dgc::train;
using nlohmann::json;

RunTraffic run_of(Algorithm algorithm, int workers) {
  return {.model = {TensorSpec::of("weight", {1000, 1000}), TensorSpec::of("bias", {1000})},
          .compress = {.values = ValueType::fp16},
          .algorithm = algorithm,
          .workers = workers,
          .steps = 1000,
          .steps_per_epoch = 100};
}

std::string error_of(const json& given) {
  try {
    resolve(given);
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

TEST(Defaults, FewWorkersTrainAsPublished) {
  for (const int workers : {1, 4, 8}) {
    const Chosen chosen = with_defaults(resolve({{"recipe", "fashion"}}), workers, 2000);
    EXPECT_EQ(chosen.settings.momentum_correction, "local");
    EXPECT_EQ(chosen.settings.algorithm, "auto");
    EXPECT_EQ(chosen.settings.ratio, "0.001");
    EXPECT_TRUE(chosen.settings.warmup);
    EXPECT_EQ(chosen.settings.warmup_shape, "paper");
    EXPECT_EQ(chosen.settings.dense_values, "fp32");
    EXPECT_NE(chosen.reason.find("ratio 0.1 %, warm-up paper, 1 epochs"), std::string::npos)
        << chosen.reason;
  }
}

TEST(Defaults, ManyWorkersSendWhatTheLengthOfTheRunAsksFor) {
  const Settings settings = resolve({{"recipe", "fashion"}});
  const auto ratio = [&](std::uint64_t steps) {
    return std::stod(with_defaults(settings, 32, steps).settings.ratio);
  };
  EXPECT_NEAR(ratio(1000), 0.095, 1e-4);
  EXPECT_NEAR(ratio(2360), 95.0 / 2360, 1e-4);
  EXPECT_EQ(ratio(1'000'000), 0.001);
  EXPECT_EQ(ratio(10), 0.135);
  const Chosen chosen = with_defaults(settings, 32, 1000);
  EXPECT_EQ(chosen.settings.momentum_correction, "global");
  EXPECT_EQ(chosen.settings.algorithm, "owner");
  EXPECT_TRUE(chosen.settings.warmup);
  EXPECT_EQ(chosen.settings.warmup_shape, "whole");
  EXPECT_EQ(chosen.settings.values, "table4");
  EXPECT_EQ(chosen.settings.dense_values, "int8");
  EXPECT_EQ(chosen.settings.warmup_epochs, settings.warmup_epochs / 2);
  const Chosen text = with_defaults(resolve({{"recipe", "text"}}), 32, 1000);
  EXPECT_EQ(text.settings.momentum_correction, "local");
  EXPECT_EQ(text.settings.ratio, "0.001");
}

TEST(Defaults, AutoSendsWhatTheLengthOfTheRunAsksForAtTheLeast) {
  const Settings settings = resolve({{"recipe", "fashion"}, {"ratio", "auto"}});
  const Chosen chosen = with_defaults(settings, 4, 1000);
  EXPECT_EQ(chosen.settings.ratio, "0.007");
  EXPECT_NE(chosen.reason.find("ratio 0.7 % or more"), std::string::npos) << chosen.reason;
  EXPECT_EQ(with_defaults(settings, 4, 100'000).settings.ratio, "0.001");
  const Settings usual = resolve({{"recipe", "fashion"}});
  EXPECT_EQ(with_defaults(settings, 32, 1000).settings.ratio,
            with_defaults(usual, 32, 1000).settings.ratio);
}

TEST(Defaults, WhatSomebodyChoseStays) {
  const json given = {{"recipe", "fashion"}, {"ratio", 0.01}, {"momentum-correction", "local"}};
  const Chosen chosen = with_defaults(resolve(given), 32, 1000);
  EXPECT_EQ(chosen.settings.ratio, "0.01");
  EXPECT_EQ(chosen.settings.momentum_correction, "local");
  EXPECT_EQ(chosen.settings.algorithm, "auto");
  EXPECT_EQ(chosen.settings.values, "fp16");
  EXPECT_EQ(chosen.settings.warmup_shape, "paper") << "as with any ratio that was given, before";
  EXPECT_EQ(chosen.settings.dense_values, "fp32");
  EXPECT_EQ(chosen.reason, "");
  const Chosen whole =
      with_defaults(resolve({{"recipe", "fashion"}, {"warmup-shape", "whole"}}), 32, 1000);
  EXPECT_EQ(whole.settings.warmup_shape, "whole");
  const json fp32 = {{"recipe", "fashion"}, {"dense-values", "fp32"}};
  EXPECT_EQ(with_defaults(resolve(fp32), 32, 1000).settings.dense_values, "fp32");
}

TEST(Budget, IsSpentAndNotExceeded) {
  for (const Algorithm algorithm : {Algorithm::allgather, Algorithm::owner, Algorithm::automatic}) {
    for (const int workers : {2, 8, 64}) {
      for (const char* budget : {"2%", "10%", "300MB"}) {
        for (const bool warmup : {false, true}) {
          const RunTraffic run = run_of(algorithm, workers);
          Settings settings = resolve({{"recipe", "fashion"}, {"budget", budget}});
          settings.warmup = warmup;
          settings.warmup_shape = "paper";
          settings.warmup_epochs = 0.1;
          const double given = budget == std::string("300MB")
                                   ? 300e6
                                   : std::stod(budget) / 100.0 * train::dense_bytes(run);
          Spending spending;
          try {
            spending = spend_budget(settings, run);
          } catch (const Error&) {
            // 64 messages that have whole one-dimensional tensors in them: more than 2 %.
            EXPECT_EQ(workers, 64) << name_of(algorithm) << " " << budget;
            continue;
          }
          EXPECT_LE(spending.bytes, given);
          EXPECT_EQ(spending.bytes, train::received_bytes(run, spending.schedule));
          if (spending.schedule.ratio_at(999) < 1.0 && algorithm != Algorithm::automatic) {
            EXPECT_GT(spending.bytes, 0.98 * given)
                << name_of(algorithm) << " " << workers << " " << budget << " " << warmup;
          }
          EXPECT_EQ(spending.schedule.warmup_steps() > 0,
                    spending.warmup_epochs > 0.0 && spending.schedule.ratio_at(999) < 0.25);
          EXPECT_TRUE(warmup || spending.warmup_epochs == 0.0);
        }
      }
    }
  }
}

TEST(Budget, WarmUpIsShortenedWhereItWouldTakeMoreThanHalf) {
  const RunTraffic run = run_of(Algorithm::owner, 8);
  Settings settings = resolve({{"recipe", "fashion"}, {"budget", "2%"}});
  settings.warmup_shape = "whole";
  settings.warmup_epochs = 1.0;  // of ten: five times the budget
  const Spending spending = spend_budget(settings, run);
  EXPECT_LE(spending.bytes, 0.02 * train::dense_bytes(run));
  EXPECT_NEAR(spending.warmup_epochs, 0.1, 0.03);
  EXPECT_NEAR(static_cast<double>(spending.schedule.warmup_steps()), 10.0, 3.0);
  EXPECT_GT(spending.schedule.ratio_at(999), 0.005);
}

TEST(Budget, OneThatIsTooSmallSaysWhatItTakes) {
  Settings settings = resolve({{"recipe", "fashion"}, {"budget", "1kB"}});
  try {
    spend_budget(settings, run_of(Algorithm::owner, 8));
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("MB at the least"), std::string::npos) << error.what();
  }
}

TEST(Budget, WordsThatAreNoneAreNamed) {
  for (const char* budget : {"40", "40 bananas", "%", "0%", "101%", "-1%", "1%%", "0MB"}) {
    EXPECT_NE(error_of({{"recipe", "fashion"}, {"budget", budget}}), "") << budget;
  }
  EXPECT_NE(error_of({{"recipe", "fashion"}, {"budget", "1%"}, {"ratio", 0.01}}).find("two ways"),
            std::string::npos);
  EXPECT_EQ(error_of({{"recipe", "fashion"}, {"budget", "1.5 GB"}, {"ratio", "default"}}), "");
  EXPECT_NE(error_of({{"recipe", "fashion"}, {"budget", "1%"}, {"ratio", "auto"}}).find("two ways"),
            std::string::npos);
}

}  // namespace
}  // namespace dgc::test
