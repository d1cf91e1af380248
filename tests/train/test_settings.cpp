// What flags, files and recipes say, and what a run writes down.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "base/random.h"
#include "dgc/error.h"
#include "support/processes.h"
#include "support/scratch.h"
#include "train/console.h"
#include "train/lr_schedule.h"
#include "train/metrics_log.h"
#include "train/recipe.h"
#include "train/record.h"
#include "train/relevant.h"
#include "train/resume_point.h"
#include "train/run_costs.h"
#include "train/run_folder.h"

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
  expect({{"recipe", "synthetic"}, {"model", "resnet9"}}, {"did you mean 'resnet8'?"});
  expect({{"recipe", "synthetic"}, {"model", "bert"}}, {"'bert'", "it has cnn, resnet8"});
  EXPECT_EQ(error_of({{"recipe", "synthetic"}, {"model", "bert"}}).find("did you mean"),
            std::string::npos);
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

TEST(TrainSettings, ModesAndOptimizersHaveSettingsOfTheirOwn) {
  const auto has = [](const json& given, const char* name) {
    return relevant(resolve(given)).contains(name);
  };
  const json gpt = {{"recipe", "gpt"}};
  for (const char* name : {"local-steps", "outer-lr", "residual-decay", "mean", "inner", "heads",
                           "context", "corpus", "weight-decay", "clip-norm"}) {
    EXPECT_TRUE(has(gpt, name)) << name;
  }
  for (const char* name : {"momentum", "nesterov", "masking", "warmup", "warmup-epochs", "budget",
                           "momentum-correction", "bptt", "dropout", "tied", "image-size"}) {
    EXPECT_FALSE(has(gpt, name)) << name;
  }
  for (const char* name : {"local-steps", "outer-lr", "residual-decay", "mean"}) {
    EXPECT_FALSE(has({{"recipe", "gpt"}, {"mode", "dense"}}, name)) << name;
    EXPECT_FALSE(has({{"recipe", "fashion"}}, name)) << name;
    EXPECT_TRUE(has({{"recipe", "fashion"}, {"mode", "dgc,dgc-local"}}, name)) << name;
  }
  EXPECT_FALSE(has({{"recipe", "gpt"}, {"mode", "diloco"}}, "residual-decay"));
  EXPECT_TRUE(has({{"recipe", "fashion"}}, "masking"));
  EXPECT_TRUE(has({{"recipe", "gpt"}, {"inner", "sgd"}}, "momentum"));
}

TEST(TrainSettings, DataFollowTheCorpus) {
  EXPECT_EQ(data_of(resolve({{"recipe", "gpt"}})), "linux-doc");
  EXPECT_EQ(data_of(resolve({{"recipe", "gpt"}, {"preset", "small"}})), "bible");
  EXPECT_EQ(data_of(resolve({{"recipe", "gpt"}, {"train", "a.txt"}})), "");
  EXPECT_EQ(data_of(resolve({{"recipe", "synthetic"}, {"model", "gpt2"}})), "");
  EXPECT_EQ(data_of(resolve({{"recipe", "text"}})), "bible");
  EXPECT_EQ(data_of(resolve({{"recipe", "fashion"}})), "fashion-mnist");
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
    for (int step = 1; step <= 5; ++step) log.write(StepLine{.step = double(step)});
  }
  std::ofstream(file, std::ios::app) << R"({"type":"step","st)";  // killed while writing
  {
    MetricsLog log(file, 3);
    log.write(StepLine{.step = 4});
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

TEST(RunCosts, AreReadAsTheyWereWrittenByAsManyWorkers) {
  const test::Scratch scratch;
  auto one = std::move(make_local_groups(1).front());
  EXPECT_FALSE(kept_costs(*one, scratch.path()));
  Costs costs;
  costs.link = {.bytes_per_second = 1.0 / 3.0, .delay = std::chrono::duration<double>(0.1)};
  costs.select = 1e-9 / 3.0;
  costs.round = 7.0;
  costs.measured = true;
  keep_costs(*one, scratch.path(), costs);
  EXPECT_EQ(kept_costs(*one, scratch.path()), costs);
  scratch.write("costs.json", R"({"workers": 2})");
  EXPECT_FALSE(kept_costs(*one, scratch.path())) << "of others";
  scratch.write("costs.json", R"({"workers": 1})");
  EXPECT_NE(test::error_text([&] { kept_costs(*one, scratch.path()); }).find("bad_state"),
            std::string::npos);
}

TEST(ResumePoint, SurvivesACheckpoint) {
  ResumePoint point{.epoch = 2, .position = 7, .positions = 100, .steps = 50};
  point.skipped_files = {"a.jpg", "b.jpg"};
  point.lr = {.factor = 0.25, .best = 4.0, .any = true};
  point.totals.times = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  point.totals.all = {10, 11, 12, 13};
  point.totals.steady = {20, 21, 22, 23, 24.5, 25.5};
  point.best_metric = 91.5;
  point.validation = Scores{.loss = kUnknown, .metrics = {{"top-1", 91.25}, {"top-5", 99.0}}};
  const ResumePoint again = ResumePoint::from(point.text());
  EXPECT_EQ(again.text(), point.text());
  EXPECT_EQ(again.position, 7);
  EXPECT_EQ(again.steps, 50u);
  EXPECT_EQ(again.skipped_files.size(), 2u);
  EXPECT_EQ(again.lr.best, 4.0);
  EXPECT_EQ(again.totals.times.total(), 1 + 2 + 3 + 4 + 5 + 6 + 7);
  EXPECT_EQ(again.totals.steady.bytes_down, 23u);
  EXPECT_EQ(again.best_metric, 91.5);
  EXPECT_TRUE(std::isnan(again.validation->loss));
  EXPECT_EQ(again.validation->metrics, point.validation->metrics);
  EXPECT_FALSE(ResumePoint::from(ResumePoint{}.text()).validation);
}

TEST(ResumePoint, WhatNoRunHasWrittenIsNamed) {
  for (const char* text : {"", "{}", R"({"epoch":"two"})", "my own notes"}) {
    try {
      ResumePoint::from(text);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::bad_state);
      EXPECT_EQ(error.subject(), "user data of the checkpoint");
    }
  }
}

// Version 0.1 wrote these: `dgc train --resume` has to understand its checkpoints.
TEST(ResumePoint, ReadsThatOfVersion01) {
  const ResumePoint point = ResumePoint::from(
      R"({"epoch":1,"position":16,"positions":32,"steps":4,"problems":["x.jpg"],)"
      R"("lr":{"factor":0.5,"best":null,"any":false},"totals":{"all":{"bytes_down":6,"bytes_up":5,)"
      R"("dense_bytes":8.5,"message_bytes":4,"ring_bytes":9.5,"steps":3},"steady":{"bytes_down":1,)"
      R"("bytes_up":2,"dense_bytes":3.0,"message_bytes":4,"ring_bytes":5.0,"steps":1},)"
      R"("times":{"data":1.0,"compute":2.0,"waiting":3.0,"apply":4.0,"evaluate":5.0,"checkpoint":6.0,)"
      R"("other":7.0,"compress":8.0,"exchange":9.0}},"best":50.0,)"
      R"("valid":{"loss":1.5,"metrics":[["top-1 accuracy",50.0]]}})");
  EXPECT_EQ(point.epoch, 1u);
  EXPECT_EQ(point.position, 16);
  EXPECT_EQ(point.totals.all.bytes_up, 5u);
  EXPECT_EQ(point.totals.all.ring_bytes, 9.5);
  EXPECT_EQ(point.totals.times.exchange, 9.0);
  EXPECT_EQ(point.validation->metrics.at(0).second, 50.0);
}

/// What a struct writes is what it reads.
TEST(Record, IsReadAsItWasWritten) {
  Result result{.metric = 91.5, .metric_of = "test", .epochs = 2.5, .steps = 10};
  result.metrics = {{"top-1", 91.5}, {"top-5", kUnknown}};
  Totals totals;
  totals.times = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  totals.all = {10, 1000, 2000, 3000, 8000.0, 6000.0};
  totals.steady = {4, 100, 200, 300, 3200.0, 2400.0};
  result.set_totals(totals);
  result.parameters_hash = "00ff";
  result.finished = true;
  EXPECT_EQ(result.message_ratio, 32.0);
  EXPECT_EQ(result.traffic_ratio, 8.0);
  EXPECT_EQ(result.message_ratio_total, 8.0);
  EXPECT_EQ(result.bytes_up_per_step, 50.0);
  EXPECT_EQ(result.seconds, 1 + 2 + 3 + 4 + 7);
  Summary summary{
      .dgc_version = "1", .recipe = "fashion", .seed = 7, .date = "now", .cpu = "a CPU"};
  summary.facts = {.model = "cnn", .parameters = 1e6, .workers = 4, .engine = "gloo"};
  summary.facts.higher_is_better = false;
  summary.modes = {{"dgc", result}, {"dense", Result{.finished = false}}};
  const auto written = to_json(summary);
  EXPECT_EQ(written["modes"]["dgc"]["steps"].dump(), "10") << "whole numbers stay whole";
  EXPECT_FALSE(written["modes"]["dgc"].contains("wire_bytes_per_step"));
  EXPECT_EQ(to_json(summary_from(written)), written);
  const StepLine step{
      .step = 3, .loss = kUnknown, .bytes_up = 5e15, .time = {.data = 1, .apply = 2}};
  EXPECT_EQ(to_json(*step_line(to_json(step))), to_json(step));
  EXPECT_FALSE(evaluation_line(to_json(step)));
  const EvaluationLine evaluation{.step = 3, .metric = 4, .metrics = {{"b", 1}, {"a", kUnknown}}};
  EXPECT_EQ(to_json(*evaluation_line(to_json(evaluation))), to_json(evaluation));
  const TensorLine tensor{.name = "w", .shape = {3, 4}, .elements = 12, .mode = "sparse", .k = 1};
  EXPECT_EQ(to_json(tensor_line(to_json(tensor))), to_json(tensor));
  const ModeResult mode{result, summary.facts};
  EXPECT_EQ(to_json(*mode_result(to_json(mode))), to_json(mode));
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
