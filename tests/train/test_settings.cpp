// What flags, files and recipes say, and what a run writes down.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "base/random.h"
#include "dgc/error.h"
#include "support/processes.h"
#include "train/console.h"
#include "train/lr_schedule.h"
#include "train/recipe.h"
#include "train/run_folder.h"
#include "train/totals.h"

namespace dgc::test {
namespace {

using namespace dgc::train;
using nlohmann::json;

std::string error_of(const json& given) {
  try {
    resolve(given);
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

TEST(TrainSettings, LaterWordsWin) {
  const Settings full = resolve({{"recipe", "ptb"}});
  EXPECT_EQ(full.hidden, 1500);
  EXPECT_EQ(full.lr, 20.0);
  EXPECT_EQ(full.momentum, 0.0);
  const Settings small = resolve({{"recipe", "ptb"}, {"preset", "small"}});
  EXPECT_LT(small.hidden, 1500);
  EXPECT_EQ(small.lr, 20.0) << "the preset says nothing about it";
  const Settings flagged = resolve({{"recipe", "ptb"}, {"preset", "small"}, {"hidden", 77}});
  EXPECT_EQ(flagged.hidden, 77);
}

TEST(TrainSettings, EveryRecipeAndPresetResolves) {
  for (const Recipe& recipe : recipes()) {
    for (const std::string& model : recipe.models) {
      for (const char* preset : {"full", "small"}) {
        const json given = {{"recipe", recipe.name}, {"model", model}, {"preset", preset}};
        EXPECT_EQ(error_of(given), "") << recipe.name << " " << model;
        // What is saved with a run makes the same run.
        const json saved = json::parse(relevant(resolve(given)).dump());
        EXPECT_EQ(to_json(resolve(saved)), to_json(resolve(given))) << recipe.name << " " << model;
      }
    }
  }
}

TEST(TrainSettings, PapersHyperParameters) {
  const Settings cifar = resolve({{"recipe", "cifar10"}});
  EXPECT_EQ(cifar.model, "resnet110");
  EXPECT_EQ(cifar.epochs, 164);
  EXPECT_EQ(cifar.warmup_epochs, 4);
  const Settings imagenet = resolve({{"recipe", "imagenet"}});
  EXPECT_EQ(imagenet.epochs, 90);
  EXPECT_EQ(imagenet.weight_decay, 1e-4);
  EXPECT_EQ(resolve({{"recipe", "imagenet"}, {"model", "alexnet"}}).weight_decay, 5e-4);
  const Settings speech = resolve({{"recipe", "librispeech"}});
  EXPECT_EQ(speech.hidden, 1200);
  EXPECT_EQ(speech.layers, 7);
  EXPECT_EQ(speech.rnn, "gru");
  EXPECT_EQ(speech.clip_norm, 400);
}

TEST(TrainSettings, MistakesAreNamed) {
  const auto expect = [](const json& given, std::initializer_list<const char*> words) {
    const std::string error = error_of(given);
    for (const char* word : words) {
      EXPECT_NE(error.find(word), std::string::npos) << given << ": " << error;
    }
  };
  expect({{"epoch", 3}}, {"epoch", "did you mean 'epochs'"});
  expect({{"epochs", "three"}}, {"epochs", "a number"});
  expect({{"batch", 1.5}}, {"batch", "whole number"});
  expect({{"batch", 0}}, {"batch", "1 or more"});
  expect({{"lr", -1}}, {"lr", "0 or more"});
  expect({{"values", "fp8"}}, {"values", "fp8", "fp16"});
  expect({{"mode", "dense,dense"}}, {"dense", "twice"});
  expect({{"mode", ""}}, {"names no mode"});
  expect({{"momentum", 1.0}}, {"momentum", "[0, 1)"});
  expect({{"ratio", 0.0}}, {"ratio"});
  expect({{"nesterov", true}, {"momentum", 0.0}}, {"nesterov"});
  expect({{"clipping", false}}, {"does not clip"});
  expect({{"dropout", 0.1}}, {"dropout", "means nothing"});
  expect({{"model", "vgg16"}}, {"vgg16", "cnn"});
  expect({{"lr-schedule", "step:0.1"}}, {"step:0.1", "plateau:4"});
}

TEST(TrainSettings, FlagsAndFilesAreReadAlike) {
  for (const Field& field : fields()) {
    const json value = to_json(resolve(json::object())).at(field.name);
    const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
    if (text.empty() || field.name == "recipe") continue;
    EXPECT_EQ(parse_value(field, text), value) << field.name;
  }
}

TEST(LrSchedule, Shapes) {
  const auto at = [](const char* text, double epoch) {
    return LrSchedule::parse(text).factor(epoch, 90.0, 0.0);
  };
  EXPECT_EQ(at("constant", 50), 1.0);
  EXPECT_EQ(at("cosine", 0), 1.0);
  EXPECT_NEAR(at("cosine", 45), 0.5, 1e-12);
  EXPECT_NEAR(at("cosine", 90), 0.0, 1e-12);
  EXPECT_EQ(at("step:0.1@30,60,80", 29.9), 1.0);
  EXPECT_NEAR(at("step:0.1@30,60,80", 30), 0.1, 1e-12);
  EXPECT_NEAR(at("step:0.1@30,60,80", 85), 1e-3, 1e-12);
  EXPECT_NEAR(at("anneal:1.1", 2.7), 1 / 1.21, 1e-12);
  EXPECT_NEAR(LrSchedule::parse("constant").factor(1.0, 90.0, 2.0), 0.55, 1e-12);
}

TEST(LrSchedule, PlateauDividesWhenValidationStalls) {
  LrSchedule schedule = LrSchedule::parse("plateau:4");
  schedule.evaluated(5.0);
  schedule.evaluated(4.0);
  EXPECT_EQ(schedule.factor(2, 40, 0), 1.0);
  schedule.evaluated(4.0);
  EXPECT_EQ(schedule.factor(3, 40, 0), 0.25);
  LrSchedule resumed = LrSchedule::parse("plateau:4");
  resumed.set_state(schedule.state());
  resumed.evaluated(4.5);
  EXPECT_EQ(resumed.factor(4, 40, 0), 0.0625) << "the best loss was forgotten";
}

TEST(Random, PermutationsAreWholeAndDiffer) {
  const auto a = permutation(1000, Random{1, 2});
  EXPECT_EQ(std::set<std::int64_t>(a.begin(), a.end()).size(), 1000u);
  EXPECT_NE(a, permutation(1000, Random{1, 3}));
  EXPECT_NE(a, permutation(1000, Random{2, 1}));
  EXPECT_EQ(a, permutation(1000, Random{1, 2}));
  // Every first element about as often.
  std::vector<int> firsts(8);
  for (std::uint64_t seed = 0; seed < 8000; ++seed) ++firsts[permutation(8, Random{seed})[0]];
  for (const int count : firsts) EXPECT_NEAR(count, 1000, 150);
}

TEST(MetricsLog, DropsWhatCameAfterTheCheckpoint) {
  const TemporaryFolder folder;
  const auto file = folder.path() / "metrics.jsonl";
  {
    MetricsLog log(file, 0);
    for (int step = 1; step <= 5; ++step) log.write({{"type", "step"}, {"step", step}});
  }
  std::ofstream(file, std::ios::app) << R"({"type":"step","st)";  // killed while writing
  {
    MetricsLog log(file, 3);
    log.write({{"type", "step"}, {"step", 4}});
  }
  std::ifstream in(file);
  std::vector<int> steps;
  for (std::string line; std::getline(in, line);) steps.push_back(json::parse(line)["step"]);
  EXPECT_EQ(steps, (std::vector<int>{1, 2, 3, 4}));
}

TEST(RunFolder, RefusesAFolderWithARun) {
  const TemporaryFolder folder;
  const auto run = folder.path() / "a" / "b";
  begin_run(run);
  begin_run(run);  // nothing there yet
  std::filesystem::create_directories(run / "dgc");
  MetricsLog log(run / "dgc" / kMetricsFile, 0);
  EXPECT_THROW(begin_run(run), Error);
}

TEST(Totals, SurviveACheckpoint) {
  Totals totals;
  totals.times = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  totals.all = {10, 11, 12, 13};
  totals.steady = {20, 21, 22, 23};
  const Totals again = totals_from(json::parse(to_json(totals).dump()));
  EXPECT_EQ(to_json(again), to_json(totals));
  EXPECT_EQ(again.times.total(), 1 + 2 + 3 + 4 + 5 + 6 + 7);
  EXPECT_EQ(again.steady.bytes_down, 23u);
}

TEST(Console, LineHasEverything) {
  const std::string line = progress_text({.mode = "dgc",
                                          .step = 120,
                                          .steps = 1876,
                                          .epoch = 0.26,
                                          .epochs = 4,
                                          .examples_per_second = 3000,
                                          .seconds_left = 75,
                                          .loss = 0.5,
                                          .metric = "top-1 accuracy 85.10 %",
                                          .bytes_per_step = 5100,
                                          .message_ratio = 530,
                                          .waiting_share = 0.12});
  EXPECT_EQ(line,
            "[dgc] epoch 0.26/4  step 120/1876  3000 examples/s  1:15 left  loss 0.5000  "
            "top-1 accuracy 85.10 %  5.1 kB/step (530x)  waiting 12 %");
}

}  // namespace
}  // namespace dgc::test
