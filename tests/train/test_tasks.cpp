// What each worker sees of the data, and what models make of it.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "models/catalogue.h"
#include "support/torch_ranks.h"
#include "train/budget.h"
#include "train/optimizer.h"
#include "train/prefetch.h"
#include "train/recipe.h"
#include "train/stepper.h"
#include "train/task.h"

namespace dgc::test {
namespace {

using namespace dgc::train;

Settings synthetic(const std::string& model, nlohmann::json more = {}) {
  nlohmann::json given = {
      {"recipe", "synthetic"}, {"model", model}, {"examples", 37}, {"batch", 8}};
  if (model == "lstm") given.update({{"hidden", 8}, {"dropout", 0.0}, {"bptt", 3}});
  if (model == "gpt-1m") {
    given.update({{"hidden", 8}, {"layers", 1}, {"heads", 2}, {"context", 4}, {"vocabulary", 50}});
  }
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
    torch::Tensor loss_of(const Batch&) override { return {}; }
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

TEST(TrainGpt, ModelsAreAsListed) {
  for (const models::Model& listed : models::catalogue()) {
    if (family_of(listed.name) != Family::transformer) continue;
    const auto task = make_task(
        resolve({{"recipe", "synthetic"}, {"model", listed.name}, {"examples", 2}, {"batch", 1}}),
        {0, 1});
    std::uint64_t parameters = 0;
    std::uint64_t one_dimensional = 0;
    int tensors = 0;
    for (const torch::Tensor& p : task->model().parameters()) {
      parameters += static_cast<std::uint64_t>(p.numel());
      if (p.dim() == 1) one_dimensional += static_cast<std::uint64_t>(p.numel());
      tensors += p.dim() > 1;
    }
    EXPECT_EQ(parameters, listed.parameters) << listed.name;
    EXPECT_EQ(one_dimensional, listed.one_dimensional) << listed.name;
    EXPECT_EQ(tensors, listed.tensors) << listed.name;
  }
}

TEST(TrainGpt, EveryWindowOnceAndForOneWorkerAlone) {
  // 37 windows, 8 a step; so many tokens that no two windows are alike.
  const Settings settings = synthetic("gpt-1m", {{"vocabulary", 50'000}});
  std::multiset<std::vector<std::int64_t>> seen;
  for (int rank = 0; rank < 4; ++rank) {
    const auto task = make_task(settings, {rank, 4});
    EXPECT_EQ(task->positions(), 32) << "what does not fill a step is left out";
    EXPECT_EQ(task->examples_in(task->positions_of_step()), 8 * 4);
    for (std::int64_t first = 0; first < 32; first += 8) {
      const Batch batch = task->batch({2, first, 8});
      ASSERT_EQ(batch.input.sizes(), (std::vector<std::int64_t>{2, 4}));
      EXPECT_EQ(batch.weight, 1.0);
      EXPECT_TRUE(torch::equal(batch.input.slice(1, 1), batch.target.slice(1, 0, 3)));
      for (std::int64_t row = 0; row < 2; ++row) {
        const auto* begin = batch.input[row].data_ptr<std::int64_t>();
        seen.emplace(begin, begin + 4);
      }
    }
  }
  EXPECT_EQ(seen.size(), 32u);
  for (const auto& window : seen) EXPECT_EQ(seen.count(window), 1u) << "another worker has it too";
}

TEST(TrainGpt, BitsPerByteCountBytes) {
  const auto task = make_task(synthetic("gpt-1m"), {0, 1});
  // 3 nats for each of 4 tokens, which stand for 10 bytes.
  const std::vector<double> sums = {12.0, 4.0, 10.0};
  const Scores scores = task->scores(sums);
  EXPECT_DOUBLE_EQ(scores.loss, 3.0);
  EXPECT_DOUBLE_EQ(scores.metrics[0].second, 12.0 / std::log(2.0) / 10.0);
  EXPECT_DOUBLE_EQ(scores.metrics[1].second, std::exp(3.0));
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
  for (const char* model : {"cnn", "lstm", "gpt-1m", "deepspeech"}) {
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

TEST(TrainTask, Bf16IsForLayersAndNothingElse) {
  for (const char* model : {"cnn", "resnet20", "lstm", "deepspeech", "gpt-1m"}) {
    std::map<std::string, double> losses;
    std::map<std::string, std::vector<double>> sums;
    for (const char* precision : {"fp32", "bf16"}) {
      const Settings settings = synthetic(model, {{"precision", precision}});
      const auto task = make_task(settings, {0, 1});
      task->model().eval();  // no dropout
      const torch::Tensor loss = task->loss(task->batch({0, 0, task->positions_of_step()}));
      EXPECT_EQ(loss.scalar_type(), torch::kFloat) << model;
      loss.backward();
      for (const torch::Tensor& parameter : task->model().parameters()) {
        EXPECT_EQ(parameter.grad().scalar_type(), torch::kFloat) << model;
        EXPECT_TRUE(torch::isfinite(parameter.grad()).all().item<bool>()) << model;
      }
      losses[precision] = loss.item<double>();
      sums[precision] = task->evaluate(Split::valid);
    }
    EXPECT_NE(losses["bf16"], losses["fp32"]) << model;
    EXPECT_NEAR(losses["bf16"], losses["fp32"], 0.05 * losses["fp32"]) << model;
    EXPECT_EQ(sums["bf16"], sums["fp32"]) << model;
  }
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

TEST(TrainInner, AdamWDecaysMatricesOnly) {
  const torch::nn::Linear model(30, 20);
  const Settings settings = resolve({{"recipe", "gpt"}, {"lr", 0.25}});
  const auto inner = make_inner(settings, *model);
  ASSERT_EQ(inner->param_groups().size(), 2u);
  for (auto& group : inner->param_groups()) {
    const auto& options = static_cast<const torch::optim::AdamWOptions&>(group.options());
    EXPECT_EQ(options.lr(), 0.25);
    EXPECT_EQ(options.betas(), std::tuple(0.9, 0.95));
    EXPECT_EQ(options.weight_decay(), group.params()[0].dim() > 1 ? 0.1 : 0.0);
  }
  EXPECT_EQ(inner->param_groups()[0].params().size() + inner->param_groups()[1].params().size(),
            2u);
  const auto sgd = make_inner(resolve({{"recipe", "fashion"}, {"nesterov", true}}), *model);
  const auto& options =
      static_cast<const torch::optim::SGDOptions&>(sgd->param_groups()[0].options());
  EXPECT_EQ(options.momentum(), 0.9);
  EXPECT_TRUE(options.nesterov());
}

TEST(TrainInner, TiedParametersCountOnce) {
  const auto task = make_task(synthetic("lstm"), {0, 1});
  std::set<const void*> seen;
  std::size_t count = 0;
  const auto inner = make_inner(resolve({{"recipe", "gpt"}}), task->model());
  for (auto& group : inner->param_groups()) {
    for (const auto& p : group.params()) {
      seen.insert(p.unsafeGetTensorImpl());
      ++count;
    }
  }
  EXPECT_EQ(seen.size(), count);
}

TEST(TrainLocal, OptionsAreWhatTheModesAreCalled) {
  const Settings settings = resolve({{"recipe", "gpt"}, {"mode", "diloco,dgc-local"}});
  const LocalStepsOptions diloco = local_options(settings, "diloco");
  EXPECT_EQ(diloco.local_steps(), 15);
  EXPECT_EQ(diloco.outer_lr(), 0.7);
  EXPECT_EQ(diloco.outer_momentum(), 0.9);
  EXPECT_EQ(diloco.schedule().ratio_at(0), 1.0);
  const LocalStepsOptions ours = local_options(settings, "dgc-local");
  EXPECT_EQ(ours.local_steps(), 15);
  EXPECT_EQ(ours.outer_lr(), 1.0);
  EXPECT_EQ(ours.outer_momentum(), 0.0);
  EXPECT_EQ(ours.schedule().ratio_at(0), 1.0 / 64);
  EXPECT_EQ(ours.values(), ValueType::table2);
  EXPECT_EQ(ours.dense_values(), ValueType::table2);
  EXPECT_EQ(ours.residual_decay(), 0.95f);
  EXPECT_EQ(ours.algorithm(), Algorithm::allgather);
  const Settings given = resolve({{"recipe", "gpt"},
                                  {"mode", "dgc-local"},
                                  {"outer-lr", "0.5"},
                                  {"residual-decay", "1"},
                                  {"ratio", "0.25"},
                                  {"values", "fp16"},
                                  {"dense-values", "fp32"},
                                  {"mean", "senders"}});
  const LocalStepsOptions other = local_options(given, "dgc-local");
  EXPECT_EQ(other.outer_lr(), 0.5);
  EXPECT_EQ(other.residual_decay(), 1.0f);
  EXPECT_EQ(other.schedule().ratio_at(0), 0.25);
  EXPECT_EQ(other.values(), ValueType::fp16);
  EXPECT_EQ(other.dense_values(), ValueType::fp32);
  EXPECT_EQ(other.exchange.mean, Mean::senders);
}

/// Parameters after some steps, and the norm that the first of them had.
std::vector<torch::Tensor> trained(Group& group, const Settings& settings, const char* mode) {
  const auto task = make_task(settings, {group.rank(), group.size()});
  const auto stepper =
      make_stepper(settings, mode, {.group = group, .model = task->model()}).stepper;
  Cursor cursor;
  for (int i = 0; i < 6; ++i) {
    stepper->set_lr(settings.lr / (1 + i));
    stepper->zero_grad();
    const std::int64_t count = task->positions_of_step();
    task->loss(task->batch({cursor.epoch, cursor.position, count})).backward();
    stepper->step(true);
    cursor.next(*task);
  }
  EXPECT_EQ(stepper->steps(), 6u);
  stepper->check_parameters();
  return copies_of(task->model().parameters());
}

TEST(TrainStepper, AveragedAdamWIsAdamWOnTheWholeBatch) {
  for (const double clip : {0.0, 0.05}) {
    const Settings settings =
        synthetic("gpt-1m", {{"lr", 0.01}, {"clip-norm", clip}, {"mode", "dense"}});
    Tensors alone;
    Tensors together;
    run_workers(1, [&](Group& group) { alone = trained(group, settings, "dense"); });
    run_workers(4, [&](Group& group) {
      const Tensors mine = trained(group, settings, "dense");
      if (group.rank() == 3) together = mine;
    });
    // Adam divides by the root of the square of what rounding may have changed.
    EXPECT_LT(relative_difference(together, alone), 1e-3);
    Tensors other;
    run_workers(4, [&](Group& group) {
      const Tensors mine = trained(group, settings, "dense-fp16");
      if (group.rank() == 0) other = mine;
    });
    EXPECT_FALSE(identical(other, together));
    EXPECT_LT(relative_difference(other, alone), 0.05);
  }
}

TEST(TrainStepper, RoundsOfWholeChangesAverageParameters) {
  // At ratio 1 in fp32, without decay, rounds of dgc-local are those of plain averaging.
  const nlohmann::json given = {
      {"mode", "dgc-local"},   {"ratio", "1"},     {"values", "fp32"}, {"dense-values", "fp32"},
      {"residual-decay", "1"}, {"local-steps", 3}, {"lr", 0.01}};
  const Settings settings = synthetic("gpt-1m", given);
  std::vector<Tensors> of_rank(2);
  run_workers(2, [&](Group& group) {
    of_rank[static_cast<std::size_t>(group.rank())] = trained(group, settings, "dgc-local");
  });
  EXPECT_TRUE(identical(of_rank[0], of_rank[1]));
  // By hand.
  std::vector<std::unique_ptr<Task>> tasks;
  std::vector<std::unique_ptr<torch::optim::Optimizer>> inners;
  for (int rank = 0; rank < 2; ++rank) {
    tasks.push_back(make_task(settings, {rank, 2}));
    inners.push_back(make_inner(settings, tasks.back()->model()));
  }
  Cursor cursor;
  for (int i = 0; i < 6; ++i) {
    for (std::size_t rank = 0; rank < 2; ++rank) {
      for (auto& g : inners[rank]->param_groups()) g.options().set_lr(settings.lr / (1 + i));
      for (auto& p : tasks[rank]->model().parameters()) p.mutable_grad().reset();
      const std::int64_t count = tasks[rank]->positions_of_step();
      tasks[rank]->loss(tasks[rank]->batch({cursor.epoch, cursor.position, count})).backward();
      torch::nn::utils::clip_grad_norm_(tasks[rank]->model().parameters(), 1.0);
      inners[rank]->step();
    }
    cursor.next(*tasks[0]);
    if (i % 3 != 2) continue;
    const torch::NoGradGuard no_grad;
    const auto a = tasks[0]->model().parameters();
    const auto b = tasks[1]->model().parameters();
    for (std::size_t p = 0; p < a.size(); ++p) {
      const torch::Tensor mean = (a[p] + b[p]) / 2;
      a[p].copy_(mean);
      b[p].copy_(mean);
    }
  }
  EXPECT_LT(relative_difference(of_rank[0], tasks[0]->model().parameters()), 1e-5);
}

TEST(TrainOptimizer, SaysWhatItChose) {
  const torch::nn::Linear model(300, 200);
  const auto reason = [&](const nlohmann::json& given, const char* mode, int workers) {
    return choose_optimizer(resolve(given), mode, *model, {workers, 1000, 100}).reason;
  };
  EXPECT_EQ(
      reason({{"recipe", "fashion"}}, "dgc", 32),
      "momentum correction global, exchange owner, ratio 9.5 %, warm-up whole, 0.5 epochs: 16 "
      "workers and more need owners and global momentum");
  EXPECT_EQ(reason({{"recipe", "fashion"}}, "dense", 32), "");
  const std::string budget = reason({{"recipe", "fashion"}, {"budget", "3%"}}, "dgc", 32);
  EXPECT_NE(budget.find("budget 3%: 0.41 epochs of warm-up, then "), std::string::npos) << budget;
  EXPECT_NE(budget.find("3 % of dense"), std::string::npos) << budget;
}

TEST(TrainOptimizer, SendsWhatTheBudgetAllows) {
  const torch::nn::Linear model(300, 200);
  for (const int workers : {4, 32}) {
    const SgdOptions options = choose_optimizer(resolve({{"recipe", "fashion"}, {"budget", "3%"}}),
                                                "dgc", *model, {workers, 1000, 100})
                                   .options;
    const RunTraffic run{
        .model = {TensorSpec::of("weight", {200, 300}), TensorSpec::of("bias", {200})},
        .compress = options.compress,
        .algorithm = options.algorithm(),
        .workers = workers,
        .steps = 1000,
        .steps_per_epoch = 100};
    const double share = received_bytes(run, options.schedule()) / dense_bytes(run);
    EXPECT_LE(share, 0.03) << workers;
    EXPECT_GT(share, 0.029) << workers;
  }
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
