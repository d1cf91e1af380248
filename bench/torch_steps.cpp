// What dgc::Sgd costs a training step, against torch::optim::SGD.
//
// A plain step and a compressed one alternate on the same data in the same run, because machines
// are shared and noisy. Several workers are compared with as many that train without exchanging
// anything, each with its share of the cores: what differs is DGC alone. A step of several lasts
// until the slowest is done, for both. CPU time, of all threads together, says what is left when
// others use the machine too; it also counts what runs beside backward.
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
#include "process/terminal.h"

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
  Timings plain;
  Timings compressed;
  Timings extra;  // of each compressed step over the plain one before it
  Timings plain_cpu, compressed_cpu, extra_cpu;
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
    Sgd compressed(*group_, *compressed_.module, settings_of(options_));
    const bool first = group_->rank() == 0;
    const int total = options_.warmup + options_.steps;
    process::ProgressBar progress(fmt::format("{}, {} worker{}", options_.model, group_->size(),
                                              group_->size() == 1 ? "" : "s"),
                                  static_cast<std::size_t>(total), options_.quiet || !first);
    Measured measured;
    for (int i = 0; i < total; ++i) {
      const Batch batch = make_batch(options_);
      const Cost before = step(plain_, plain, batch);
      const Cost after = step(compressed_, compressed, batch);
      progress.advance();
      if (i < options_.warmup) continue;
      measured.plain.add(before.wall);
      measured.compressed.add(after.wall);
      measured.extra.add(after.wall - before.wall);
      measured.plain_cpu.add(before.cpu);
      measured.compressed_cpu.add(after.cpu);
      measured.extra_cpu.add(after.cpu - before.cpu);
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
    return measured;
  }

  /// Until all workers have done theirs.
  Cost step(Model& model, torch::optim::Optimizer& optimizer, const Batch& batch) {
    // Undefined rather than zero, for both: zeroing would cost the plain step time.
    for (auto& parameter : model.module->parameters()) parameter.mutable_grad().reset();
    barrier(*group_);
    const Cost start = now();
    model.loss(batch).backward();
    optimizer.step();
    barrier(*group_);
    const Cost end = now();
    return {end.wall - start.wall, end.cpu - start.cpu};
  }

  const TorchOptions& options_;
  std::unique_ptr<Group> group_;
  Model plain_;
  Model compressed_;
};

}  // namespace

json measure_steps(const TorchOptions& options, int workers) {
  // Nothing is lost here: whoever takes long is computing.
  auto groups = make_local_groups(workers, std::chrono::hours(1));
  std::vector<std::unique_ptr<Worker>> all;
  for (auto& group : groups) all.push_back(std::make_unique<Worker>(options, std::move(group)));
  std::vector<std::future<Measured>> runs;
  for (auto& worker : all)
    runs.push_back(std::async(std::launch::async, [&worker] { return worker->run(); }));
  const Measured m = runs[0].get();
  for (std::size_t i = 1; i < runs.size(); ++i) runs[i].get();

  json result = {{"model", options.model},
                 {"parameters", m.report.parameters},
                 {"batch", options.batch},
                 {"workers", workers},
                 {"threads_each", std::max(1, options.cores / workers)},
                 {"compression_threads", options.threads},
                 {"ratio", options.ratio},
                 {"values", options.values},
                 {"algorithm", m.report.algorithm},
                 {"overlap", m.report.overlap},
                 {"plain_ms", m.plain.p50()},
                 {"dgc_ms", m.compressed.p50()},
                 {"extra_ms", m.extra.p50()},
                 {"extra_share", m.extra.p50() / m.plain.p50()},
                 {"plain_cpu_ms", m.plain_cpu.p50()},
                 {"dgc_cpu_ms", m.compressed_cpu.p50()},
                 {"extra_cpu_share", m.extra_cpu.p50() / m.plain_cpu.p50()},
                 {"message_ratio", m.last.message_ratio},
                 {"message_bytes", m.last.message_bytes},
                 {"timings", {{"plain", m.plain.json()}, {"dgc", m.compressed.json()}}}};
  if (options.model == "resnet50") result["image"] = options.image;
  const std::pair<const char*, const Timings*> phases[] = {
      {"compress", &m.compress}, {"encode", &m.encode}, {"exchange", &m.exchange},
      {"waiting", &m.waiting},   {"apply", &m.apply},   {"statistics", &m.statistics}};
  for (const auto& [name, timings] : phases) {
    result[fmt::format("{}_ms", name)] = timings->p50();
    result[fmt::format("{}_share", name)] = timings->p50() / m.plain.p50();
  }
  return result;
}

}  // namespace dgc::bench
