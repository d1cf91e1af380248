// What each worker sees of the data, and what models make of it.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "train/optimizer.h"
#include "train/prefetch.h"
#include "train/recipe.h"
#include "train/task.h"

namespace dgc::test {
namespace {

using namespace dgc::train;

Settings synthetic(const std::string& model, nlohmann::json more = {}) {
  nlohmann::json given = {
      {"recipe", "synthetic"}, {"model", model}, {"examples", 37}, {"batch", 8}};
  if (model == "lstm") given.update({{"hidden", 8}, {"dropout", 0.0}, {"bptt", 3}});
  if (model == "deepspeech") given.update({{"hidden", 8}, {"layers", 1}, {"channels", 2}});
  if (!more.is_null()) given.update(more);
  return resolve(given);
}

TEST(TrainOrder, EveryExampleOncePerEpochForAnyNumberOfWorkers) {
  for (const int workers : {1, 2, 3, 4, 7, 16}) {
    for (const std::int64_t count : {16, 17, 37, 64}) {
      for (const std::int64_t batch : {1, 5, 32}) {
        std::map<std::int64_t, int> seen;
        for (int rank = 0; rank < workers; ++rank) {
          const ShuffledOrder order(count, 1);
          for (std::int64_t first = 0; first < count; first += batch * workers) {
            const Draw draw{3, first, std::min(batch * workers, count - first)};
            const auto epoch = order.of(3);
            const auto mine = examples_of(epoch, draw, {rank, workers});
            EXPECT_LE(static_cast<std::int64_t>(mine.size()), batch);
            for (const std::int64_t i : mine) ++seen[i];
          }
        }
        EXPECT_EQ(static_cast<std::int64_t>(seen.size()), count);
        for (const auto& [example, times] : seen) EXPECT_EQ(times, 1) << example;
      }
    }
  }
}

TEST(TrainOrder, WeightsMakeTheMeanOverWorkersTheMeanOverExamples) {
  const Draw draw{0, 0, 5};  // on 4 workers: 2, 1, 1, 1
  double sum = 0.0;
  for (int rank = 0; rank < 4; ++rank) {
    const std::int64_t mine = rank == 0 ? 2 : 1;
    sum += weight_of(mine, draw, {rank, 4});
  }
  EXPECT_DOUBLE_EQ(sum / 4, 1.0);
  EXPECT_DOUBLE_EQ(weight_of(2, draw, {0, 4}), 1.6);
}

/// Everything that a worker sees in two epochs, for each way to fetch it.
std::vector<Prefetcher::Item> fetched(const Task& task, Cursor start, int threads, int count) {
  Prefetcher prefetcher(task, start, threads);
  std::vector<Prefetcher::Item> items;
  for (int i = 0; i < count; ++i) items.push_back(prefetcher.next());
  return items;
}

TEST(TrainPrefetch, DoesNotDependOnThreadsAndStartsAnywhere) {
  const auto task = make_task(synthetic("cnn"), {1, 3});
  const auto one = fetched(*task, {}, 1, 12);
  const auto three = fetched(*task, {}, 3, 12);
  Cursor middle;
  for (int i = 0; i < 5; ++i) middle.next(*task);
  const auto late = fetched(*task, middle, 2, 7);
  ASSERT_EQ(one.size(), three.size());
  for (std::size_t i = 0; i < one.size(); ++i) {
    EXPECT_TRUE(torch::equal(one[i].batch.input, three[i].batch.input)) << i;
    EXPECT_TRUE(torch::equal(one[i].batch.target, three[i].batch.target)) << i;
    if (i >= 5) {
      EXPECT_TRUE(torch::equal(one[i].batch.input, late[i - 5].batch.input)) << i;
    }
  }
}

TEST(TrainPrefetch, ErrorsComeOut) {
  class Failing : public Task {
   public:
    Failing() : Task(resolve({{"recipe", "synthetic"}})) {}
    torch::nn::Module& model() override { return module_; }
    MetricInfo metric() const override { return {}; }
    std::vector<std::string> facts() const override { return {}; }
    std::int64_t positions() const override { return 10; }
    std::int64_t positions_of_step() const override { return 1; }
    Batch batch(const Draw& draw) const override {
      if (draw.first == 2) throw std::runtime_error("third");
      return {};
    }
    torch::Tensor loss(const Batch&) override { return {}; }
    std::vector<double> evaluate(Split) override { return {}; }
    Scores scores(std::span<const double>) const override { return {}; }

   private:
    torch::nn::Module module_;
  };
  const Failing task;
  Prefetcher prefetcher(task, {}, 2);
  prefetcher.next();
  prefetcher.next();
  EXPECT_THROW(prefetcher.next(), std::runtime_error);
}

TEST(TrainText, WorkersHaveColumnsOfTheirOwnAndWordsFollowEachOther) {
  const Settings settings = synthetic("lstm");
  std::vector<torch::Tensor> inputs;
  for (int rank = 0; rank < 4; ++rank) {
    const auto task = make_task(settings, {rank, 4});
    EXPECT_EQ(task->positions_of_step(), 3);
    const Batch first = task->batch({0, 0, 3});
    const Batch second = task->batch({0, 3, 3});
    EXPECT_EQ(first.input.size(1), 2) << "8 columns on 4 workers";
    EXPECT_TRUE(torch::equal(first.target.slice(0, 0, 2), first.input.slice(0, 1, 3)));
    EXPECT_TRUE(torch::equal(first.target[2], second.input[0])) << "goes on where it ended";
    inputs.push_back(first.input);
  }
  EXPECT_FALSE(torch::equal(inputs[0], inputs[1]));
}

TEST(TrainText, StateIsCarried) {
  const auto task = make_task(synthetic("lstm"), {0, 1});
  task->begin_epoch();
  EXPECT_FALSE(task->carried().defined());
  task->loss(task->batch({0, 0, 3}));
  const torch::Tensor carried = task->carried();
  ASSERT_TRUE(carried.defined());
  const double next = task->loss(task->batch({0, 3, 3})).item<double>();
  task->carry(carried);
  EXPECT_EQ(task->loss(task->batch({0, 3, 3})).item<double>(), next);
  task->begin_epoch();
  EXPECT_NE(task->loss(task->batch({0, 3, 3})).item<double>(), next);
}

TEST(TrainSpeech, BatchesAreOfAboutOneLengthAndPaddedWithZeros) {
  const auto task = make_task(synthetic("deepspeech"), {0, 1});
  std::int64_t seen = 0;
  for (std::int64_t first = 0; first < task->positions(); first += 8) {
    const Batch batch =
        task->batch({1, first, std::min<std::int64_t>(8, task->positions() - first)});
    seen += batch.examples;
    EXPECT_EQ(batch.input_lengths.max().item<std::int64_t>(), batch.input.size(3));
    EXPECT_EQ(batch.target_lengths.sum().item<std::int64_t>(), batch.target.numel());
  }
  EXPECT_EQ(seen, task->positions());
}

TEST(TrainTask, EvaluationsAddUpForAnyNumberOfWorkers) {
  torch::set_num_threads(1);
  for (const char* model : {"cnn", "lstm", "deepspeech"}) {
    std::vector<Scores> scores;
    for (const int workers : {1, 3}) {
      std::vector<double> sums;
      std::unique_ptr<Task> task;
      for (int rank = 0; rank < workers; ++rank) {
        task = make_task(synthetic(model), {rank, workers});
        const auto mine = task->evaluate(Split::valid);
        sums.resize(mine.size());
        for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += mine[i];
      }
      scores.push_back(task->scores(sums));
    }
    EXPECT_NEAR(scores[0].loss, scores[1].loss, 1e-3 * std::abs(scores[0].loss)) << model;
    EXPECT_NEAR(scores[0].metrics[0].second, scores[1].metrics[0].second,
                1e-3 * std::abs(scores[0].metrics[0].second))
        << model;
  }
}

SgdOptions optimizer_options(const Settings& settings, const char* mode, std::int64_t epoch) {
  const torch::nn::Linear model(30, 20);
  return choose_optimizer(settings, mode, *model, {4, 5000, epoch}).options;
}

TEST(TrainOptimizer, ModesAreWhatTheyAreCalled) {
  const Settings settings = resolve({{"recipe", "ptb"}, {"momentum", 0.9}, {"warmup-epochs", 2.0}});
  const SgdOptions dense = optimizer_options(settings, "dense", 100);
  EXPECT_EQ(dense.schedule().ratio_at(0), 1.0);
  EXPECT_EQ(dense.clip_norm(), 0.25);
  EXPECT_EQ(optimizer_options(settings, "dense-fp16", 100).dense_transport(), ValueType::fp16);
  const SgdOptions dgc = optimizer_options(settings, "dgc", 100);
  EXPECT_EQ(dgc.schedule().ratio_at(0), 0.25);
  EXPECT_EQ(dgc.schedule().ratio_at(199), 0.004);
  EXPECT_EQ(dgc.schedule().ratio_at(200), 0.001);
  EXPECT_TRUE(dgc.masking());
  EXPECT_EQ(dgc.momentum_correction(), MomentumCorrection::local);
  const SgdOptions naive = optimizer_options(settings, "naive", 100);
  EXPECT_EQ(naive.schedule().ratio_at(0), 0.001);
  EXPECT_FALSE(naive.masking());
  EXPECT_EQ(naive.momentum_correction(), MomentumCorrection::off);
  EXPECT_EQ(naive.clip_norm(), 0.0);
  Settings without = settings;
  without.warmup = without.clipping = without.masking = false;
  const SgdOptions bare = optimizer_options(without, "dgc", 100);
  EXPECT_EQ(bare.schedule().ratio_at(0), 0.001);
  EXPECT_EQ(bare.clip_norm(), 0.0);
  EXPECT_FALSE(bare.masking());
  EXPECT_EQ(bare.momentum_correction(), MomentumCorrection::local);
}

TEST(TrainOptimizer, SaysWhatItChose) {
  const torch::nn::Linear model(300, 200);
  const auto reason = [&](const nlohmann::json& given, const char* mode, int workers) {
    return choose_optimizer(resolve(given), mode, *model, {workers, 1000, 100}).reason;
  };
  EXPECT_EQ(
      reason({{"recipe", "fashion"}}, "dgc", 32),
      "momentum correction global, exchange owner, ratio 3.5 %, warm-up whole, 0.5 epochs: 16 "
      "workers and more need owners and global momentum");
  EXPECT_EQ(reason({{"recipe", "fashion"}}, "dense", 32), "");
  const std::string budget = reason({{"recipe", "fashion"}, {"budget", "3%"}}, "dgc", 32);
  EXPECT_NE(budget.find("budget 3%: 0.2 epochs of warm-up, then "), std::string::npos) << budget;
  EXPECT_NE(budget.find("3 % of dense"), std::string::npos) << budget;
}

TEST(TrainOptimizer, AWarmUpThatCannotBeCountedIsRefused) {
  for (const double epochs : {1e17, 1e300}) {
    const Settings settings = resolve({{"recipe", "fashion"}, {"warmup-epochs", epochs}});
    try {
      optimizer_options(settings, "dgc", 250);
      ADD_FAILURE() << epochs;
    } catch (const Error& error) {
      EXPECT_EQ(error.subject(), "--warmup-epochs");
    }
  }
}

}  // namespace
}  // namespace dgc::test
