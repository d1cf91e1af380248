// dgc bench torch: what dgc::Sgd costs a training step, against torch::optim::SGD.
//
// A plain step and a compressed one alternate on the same data in the same run, because machines
// are shared and noisy. Several workers are compared with as many that train without exchanging
// anything, each with its share of the cores: what differs is DGC alone. A step of several lasts
// until the slowest is done, for both. CPU time, of all threads together, says what is left when
// others use the machine too; it also counts what runs beside backward.
#include <fmt/format.h>
#include <time.h>
#include <torch/torch.h>

#include <algorithm>
#include <functional>
#include <future>
#include <memory>
#include <thread>

#include "bench.h"
#include "dgc/collectives.h"
#include "dgc/error.h"
#include "dgc/sgd.h"
#include "output.h"
#include "train/models/cnn.h"
#include "train/models/lstm.h"
#include "train/models/resnet.h"
#include "tuning.h"

namespace dgc::app {
namespace {

using nlohmann::json;

struct Options {
  std::string model = "resnet50";
  int batch = 0;  // 0: a small one, by model
  int image = 224;
  double ratio = 0.001;
  std::string values = "fp16";
  std::string algorithm = "auto";
  std::vector<int> workers = {1, 2};
  int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  int threads = 1;
  bool no_overlap = false;
  int steps = 5;
  int warmup = 1;
  std::int64_t seed = 1;
  bool as_json = false;
  bool quiet = false;
};

struct Batch {
  torch::Tensor input;
  torch::Tensor target;
};

struct Model {
  std::shared_ptr<torch::nn::Module> module;
  std::function<torch::Tensor(const Batch&)> loss;
};

constexpr std::int64_t kWords = 35;  // of each sequence, as usual for Penn Treebank

int batch_of(const Options& options) {
  if (options.batch != 0) return options.batch;
  return options.model == "resnet50" ? 4 : options.model == "cnn" ? 32 : 20;
}

template <typename Net>
Model classifier(Net net) {
  return {net.ptr(), [net](const Batch& batch) mutable {
            return torch::nn::functional::cross_entropy(net->forward(batch.input), batch.target);
          }};
}

Model make_model(const Options& options) {
  torch::manual_seed(static_cast<std::uint64_t>(options.seed));
  if (options.model == "resnet50") return classifier(train::make_resnet50());
  if (options.model == "cnn") return classifier(train::make_cnn());
  train::LanguageModel net = train::make_language_model();
  return {net.ptr(), [net](const Batch& batch) mutable {
            return torch::nn::functional::cross_entropy(
                std::get<0>(net->forward(batch.input)).flatten(0, 1), batch.target.flatten());
          }};
}

Batch make_batch(const Options& options) {
  const std::int64_t size = batch_of(options);
  if (options.model == "lstm") {
    const std::int64_t vocabulary = train::LanguageModelOptions{}.vocabulary;
    return {torch::randint(vocabulary, {kWords, size}, torch::kLong),
            torch::randint(vocabulary, {kWords, size}, torch::kLong)};
  }
  const bool color = options.model == "resnet50";
  const std::int64_t side = color ? options.image : 28;
  return {torch::randn({size, color ? 3 : 1, side, side}),
          torch::randint(color ? 1000 : 10, {size}, torch::kLong)};
}

SgdOptions settings_of(const Options& options) {
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
  Worker(const Options& options, std::unique_ptr<Group> group)
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
    Progress progress(fmt::format("{}, {} worker{}", options_.model, group_->size(),
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

  const Options& options_;
  std::unique_ptr<Group> group_;
  Model plain_;
  Model compressed_;
};

json run_one(const Options& options, int workers) {
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
                 {"batch", batch_of(options)},
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

void print_table(const json& results) {
  const auto number = [](const json& r, const std::string& key) { return r[key].get<double>(); };
  std::vector<std::vector<std::string>> rows = {
      {"workers", "threads each", "plain ms", "dgc ms", "extra ms", "extra %", "extra cpu %",
       "compress ms", "encode ms", "exchange ms", "waiting ms", "apply ms", "statistics ms",
       "message ratio"}};
  for (const json& r : results) {
    std::vector<std::string> row = {std::to_string(r["workers"].get<int>()),
                                    std::to_string(r["threads_each"].get<int>())};
    for (const char* key : {"plain_ms", "dgc_ms", "extra_ms"})
      row.push_back(fmt::format("{:.1f}", number(r, key)));
    for (const char* key : {"extra_share", "extra_cpu_share"})
      row.push_back(fmt::format("{:.1f}", 100.0 * number(r, key)));
    for (const char* key :
         {"compress_ms", "encode_ms", "exchange_ms", "waiting_ms", "apply_ms", "statistics_ms"})
      row.push_back(fmt::format("{:.2f}", number(r, key)));
    row.push_back(fmt::format("{:.0f}", number(r, "message_ratio")));
    rows.push_back(row);
  }
  fmt::print("{}\n", table(rows));
  fmt::print(
      "p50 of each; extra is the p50 of the differences between neighbouring steps, and its share "
      "of the plain step. compress, encode and exchange run beside backward (overlap {}); waiting "
      "and apply do not.\n",
      results[0]["overlap"].get<std::string>());
}

void run(const Options& options) {
  settings_of(options);  // refuses what it does not know before any model is made
  use_fast_blas();
  if (!options.as_json) {
    fmt::print(
        "{}, batch {}{} each, momentum 0.9, ratio {}, {} values; plain is torch::optim::SGD, "
        "several plain workers exchange nothing\n\n",
        options.model, batch_of(options),
        options.model == "resnet50" ? fmt::format(" of {0}x{0}", options.image) : "", options.ratio,
        options.values);
  }
  json results = json::array();
  for (const int workers : options.workers) results.push_back(run_one(options, workers));
  if (options.as_json) {
    fmt::print("{}\n", results.dump(2));
  } else {
    print_table(results);
  }
}

}  // namespace

void add_bench_torch(CLI::App& bench) {
  auto* command = bench.add_subcommand("torch", "A training step of libtorch with and without dgc");
  command->footer(
      "Example:\n  dgc bench torch --batch 8 --steps 10\n"
      "  dgc bench torch --model lstm --workers 2 --ratio 0.01 --json");
  auto o = std::make_shared<Options>();
  command->add_option("--model", o->model, "resnet50, cnn (28x28), lstm (words)")
      ->capture_default_str()
      ->check(CLI::IsMember({"resnet50", "cnn", "lstm"}));
  command->add_option("--batch", o->batch, "Of each worker [4, 32 or 20, by model]")
      ->check(CLI::Range(1, 65536));
  command->add_option("--image", o->image, "Width and height, for resnet50")
      ->capture_default_str()
      ->check(CLI::Range(32, 1024));
  command->add_option("--ratio", o->ratio, "Share that is sent")
      ->capture_default_str()
      ->check(CLI::Range(1e-9, 1.0));
  command->add_option("--values", o->values, "fp32, fp16, bf16, int8, sign")->capture_default_str();
  command->add_option("--algorithm", o->algorithm, "auto, allgather, owner, dense, hierarchical")
      ->capture_default_str();
  command->add_option("--workers", o->workers, "Numbers of workers to measure, as threads")
      ->delimiter(',')
      ->capture_default_str()
      ->check(CLI::Range(1, 64));
  command->add_option("--cores", o->cores, "That the workers share; libtorch's threads")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  command->add_option("--threads", o->threads, "Of each worker's compression")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  command->add_flag("--no-overlap", o->no_overlap, "Compress after backward, not beside it");
  command->add_option("--steps", o->steps, "Steps to measure")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000000));
  command->add_option("--warmup", o->warmup, "Steps before measuring")
      ->capture_default_str()
      ->check(CLI::Range(0, 1000000));
  command->add_option("--seed", o->seed, "Of the weights and the data")->capture_default_str();
  command->add_flag("--json", o->as_json, "Print an array of JSON objects");
  command->add_flag("--quiet", o->quiet, "No progress");
  command->callback([o] { run(*o); });
}

}  // namespace dgc::app
