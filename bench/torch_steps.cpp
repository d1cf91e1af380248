// What dgc::Sgd costs a training step, against torch::optim::SGD.
//
// A plain step, a dense and a compressed one take turns on the same data in the same run, because
// machines are shared and noisy. Several workers are compared with as many that train without
// exchanging anything, each with its share of the cores: what differs is the exchange alone. A step
// of several lasts until the slowest is done, for all three. With blocks of steps, those that
// exchange nothing do not wait for each other inside one: what differs then is also the waiting.
// CPU time, of all workers together, says what is left when others use the machine too; it also
// counts what runs beside backward.
#include <fmt/format.h>
#include <time.h>
#include <torch/torch.h>

#include <functional>
#include <future>
#include <memory>

#include "bench/bench.h"
#include "bench/torch.h"
#include "dgc/collectives.h"
#include "dgc/error.h"
#include "dgc/sgd.h"
#include "models/cnn.h"
#include "models/lstm.h"
#include "models/resnet.h"
#include "process/rendezvous.h"
#include "process/terminal.h"
#include "process/tuning.h"

namespace dgc::bench {
namespace {

using nlohmann::json;

struct Batch {
  torch::Tensor input;
  torch::Tensor target;
};

struct Model {
  std::shared_ptr<torch::nn::Module> module;
  std::function<torch::Tensor(const Batch&)> loss;
};

constexpr std::int64_t kWords = 35;  // of each sequence, as usual for Penn Treebank

template <typename Net>
Model classifier(Net net) {
  return {net.ptr(), [net](const Batch& batch) mutable {
            return torch::nn::functional::cross_entropy(net->forward(batch.input), batch.target);
          }};
}

Model make_model(const TorchOptions& options) {
  torch::manual_seed(static_cast<std::uint64_t>(options.seed));
  if (options.model == "resnet50") return classifier(models::make_resnet50());
  if (options.model == "cnn") return classifier(models::make_cnn());
  models::LanguageModel net = models::make_language_model();
  return {net.ptr(), [net](const Batch& batch) mutable {
            return torch::nn::functional::cross_entropy(
                std::get<0>(net->forward(batch.input)).flatten(0, 1), batch.target.flatten());
          }};
}

Batch make_batch(const TorchOptions& options) {
  const std::int64_t size = options.batch;
  if (options.model == "lstm") {
    const std::int64_t vocabulary = models::LanguageModelOptions{}.vocabulary;
    return {torch::randint(vocabulary, {kWords, size}, torch::kLong),
            torch::randint(vocabulary, {kWords, size}, torch::kLong)};
  }
  const bool color = options.model == "resnet50";
  const std::int64_t side = color ? options.image : 28;
  return {torch::randn({size, color ? 3 : 1, side, side}),
          torch::randint(color ? 1000 : 10, {size}, torch::kLong)};
}

SgdOptions settings_of(const TorchOptions& options) {
  return SgdOptions(0.001)
      .momentum(0.9)
      .schedule(Schedule(options.ratio))
      .values(parse_value_type(options.values))
      .algorithm(parse_algorithm(options.algorithm))
      .overlap(!options.no_overlap)
      .threads(options.threads);
}

/// As `dgc train --mode dense`.
SgdOptions dense_settings_of(const TorchOptions& options) {
  return settings_of(options)
      .schedule(Schedule(1.0))
      .values(ValueType::fp32)
      .algorithm(Algorithm::dense);
}

/// Milliseconds of a step.
struct Cost {
  double wall;
  double cpu;
};

/// Since some point in the past.
Cost now() {
  timespec cpu{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu);
  const std::chrono::duration<double, std::milli> wall =
      std::chrono::steady_clock::now().time_since_epoch();
  return {wall.count(),
          static_cast<double>(cpu.tv_sec) * 1e3 + static_cast<double>(cpu.tv_nsec) / 1e6};
}

/// What one worker saw; only rank 0's is reported.
struct Measured {
  struct Kind {
    std::vector<double> wall, cpu;

    void add(const Cost& cost) {
      wall.push_back(cost.wall);
      cpu.push_back(cost.cpu);
    }
  };
  Kind plain, dense, compressed;
  Timings compress, encode, exchange, waiting, apply, statistics;
  StepStats last;
  SgdReport report;
};

class Worker {
 public:
  Worker(const TorchOptions& options, std::unique_ptr<Group> group)
      : options_(options),
        group_(std::move(group)),
        plain_(make_model(options)),
        dense_(make_model(options)),
        compressed_(make_model(options)) {}

  /// On a thread of its own: the number of threads that libtorch uses is a matter of each thread.
  Measured run() {
    try {
      return measure();
    } catch (const std::exception& error) {
      group_->fail(as_error(error));
      throw;
    }
  }

 private:
  Measured measure() {
    torch::set_num_threads(std::max(1, options_.cores / group_->size()));
    torch::optim::SGD plain(plain_.module->parameters(),
                            torch::optim::SGDOptions(0.001).momentum(0.9));
    Sgd dense(*group_, *dense_.module, dense_settings_of(options_));
    Sgd compressed(*group_, *compressed_.module, settings_of(options_));
    const bool first = group_->rank() == 0;
    const int total = options_.warmup + options_.steps;
    process::ProgressBar progress(fmt::format("{}, {} worker{}", options_.model, group_->size(),
                                              group_->size() == 1 ? "" : "s"),
                                  static_cast<std::size_t>(total), options_.quiet || !first);
    Measured measured;
    for (int i = 0; i < total; ++i) {
      const Batch batch = make_batch(options_);
      const Cost of_plain = steps(plain_, plain, batch);
      const Cost of_dense = steps(dense_, dense, batch);
      const Cost of_compressed = steps(compressed_, compressed, batch);
      progress.advance();
      if (i < options_.warmup) continue;
      measured.plain.add(of_plain);
      measured.dense.add(of_dense);
      measured.compressed.add(of_compressed);
      const StepStats& stats = compressed.stats();
      measured.compress.add(stats.compress * 1e3);
      measured.encode.add(stats.encode * 1e3);
      measured.exchange.add(stats.exchange * 1e3);
      measured.waiting.add(stats.waiting * 1e3);
      measured.apply.add(stats.apply * 1e3);
      measured.statistics.add(stats.statistics * 1e3);
    }
    measured.last = compressed.stats();
    measured.report = compressed.report();
    for (auto* kind : {&measured.plain, &measured.dense, &measured.compressed}) add_up(kind->cpu);
    return measured;
  }

  /// The clock of CPU time is that of the process. Where each worker is one, all of them count.
  void add_up(std::vector<double>& cpu) {
    if (group_->engine() == "local") return;
    std::vector<float> sums(cpu.begin(), cpu.end());
    all_reduce(*group_, sums);
    cpu.assign(sums.begin(), sums.end());
  }

  /// One of a block of steps, which lasts until all workers have done theirs.
  Cost steps(Model& model, torch::optim::Optimizer& optimizer, const Batch& batch) {
    barrier(*group_);
    const Cost start = now();
    for (int i = 0; i < options_.block; ++i) {
      // Undefined rather than zero, for all: zeroing would cost the plain step time.
      for (auto& parameter : model.module->parameters()) parameter.mutable_grad().reset();
      model.loss(batch).backward();
      optimizer.step();
    }
    barrier(*group_);
    const Cost end = now();
    return {(end.wall - start.wall) / options_.block, (end.cpu - start.cpu) / options_.block};
  }

  const TorchOptions& options_;
  std::unique_ptr<Group> group_;
  Model plain_;
  Model dense_;
  Model compressed_;
};

Timings timings(const std::vector<double>& milliseconds) {
  Timings all;
  for (const double one : milliseconds) all.add(one);
  return all;
}

/// Of each step over the plain one before it.
double extra(const std::vector<double>& with, const std::vector<double>& without) {
  Timings differences;
  for (std::size_t i = 0; i < with.size(); ++i) differences.add(with[i] - without[i]);
  return differences.p50();
}

json results_of(const Measured& m, const TorchOptions& options, int workers) {
  const Timings plain = timings(m.plain.wall), dense = timings(m.dense.wall),
                compressed = timings(m.compressed.wall);
  const double plain_cpu = timings(m.plain.cpu).p50();
  json result = {
      {"model", options.model},
      {"parameters", m.report.parameters},
      {"batch", options.batch},
      {"workers", workers},
      {"launch", options.launch},
      {"block", options.block},
      {"threads_each", std::max(1, options.cores / workers)},
      {"compression_threads", options.threads},
      {"ratio", options.ratio},
      {"values", options.values},
      {"algorithm", m.report.algorithm},
      {"overlap", m.report.overlap},
      {"plain_ms", plain.p50()},
      {"dense_ms", dense.p50()},
      {"dgc_ms", compressed.p50()},
      {"dense_extra_ms", extra(m.dense.wall, m.plain.wall)},
      {"dense_extra_share", extra(m.dense.wall, m.plain.wall) / plain.p50()},
      {"extra_ms", extra(m.compressed.wall, m.plain.wall)},
      {"extra_share", extra(m.compressed.wall, m.plain.wall) / plain.p50()},
      {"plain_cpu_ms", plain_cpu},
      {"dense_cpu_ms", timings(m.dense.cpu).p50()},
      {"dgc_cpu_ms", timings(m.compressed.cpu).p50()},
      {"dense_extra_cpu_share", extra(m.dense.cpu, m.plain.cpu) / plain_cpu},
      {"extra_cpu_share", extra(m.compressed.cpu, m.plain.cpu) / plain_cpu},
      {"message_ratio", m.last.message_ratio},
      {"message_bytes", m.last.message_bytes},
      {"timings", {{"plain", plain.json()}, {"dense", dense.json()}, {"dgc", compressed.json()}}}};
  if (options.model == "resnet50") result["image"] = options.image;
  const std::pair<const char*, const Timings*> phases[] = {
      {"compress", &m.compress}, {"encode", &m.encode}, {"exchange", &m.exchange},
      {"waiting", &m.waiting},   {"apply", &m.apply},   {"statistics", &m.statistics}};
  for (const auto& [name, milliseconds] : phases) {
    result[fmt::format("{}_ms", name)] = milliseconds->p50();
    result[fmt::format("{}_share", name)] = milliseconds->p50() / plain.p50();
  }
  return result;
}

/// Nothing is lost here: whoever takes long is computing.
constexpr std::chrono::hours kPatience(1);

}  // namespace

json measure_steps(const TorchOptions& options, int workers) {
  process::keep_freed_memory();  // as dgc train does
  auto groups = make_local_groups(workers, kPatience);
  std::vector<std::unique_ptr<Worker>> all;
  for (auto& group : groups) all.push_back(std::make_unique<Worker>(options, std::move(group)));
  std::vector<std::future<Measured>> runs;
  for (auto& worker : all)
    runs.push_back(std::async(std::launch::async, [&worker] { return worker->run(); }));
  const Measured measured = runs[0].get();
  for (std::size_t i = 1; i < runs.size(); ++i) runs[i].get();
  return results_of(measured, options, workers);
}

json measure_steps_as_rank(const TorchOptions& options) {
  process::keep_freed_memory();
  auto group = process::join_group("auto", kPatience);
  const int rank = group->rank();
  const int workers = group->size();
  const Measured measured = Worker(options, std::move(group)).run();
  return rank == 0 ? results_of(measured, options, workers) : json();
}

}  // namespace dgc::bench
