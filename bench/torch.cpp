#include "bench/torch.h"

#include <fmt/format.h>

#include <memory>

#include "base/choice.h"
#include "base/environment.h"
#include "bench/bench.h"
#include "bench/options.h"
#include "dgc/engines.h"
#include "dgc/exchange.h"
#include "process/launcher.h"
#include "process/terminal.h"
#include "process/tuning.h"

namespace dgc::bench {
namespace {

using nlohmann::json;

void print_table(const json& results) {
  const auto number = [](const json& r, const std::string& key) { return r[key].get<double>(); };
  std::vector<std::vector<std::string>> rows = {
      {"workers", "threads each", "plain ms", "dense ms", "dgc ms", "dense extra %", "extra ms",
       "extra %", "extra cpu %", "compress ms", "encode ms", "exchange ms", "waiting ms",
       "apply ms", "statistics ms", "message ratio"}};
  for (const json& r : results) {
    std::vector<std::string> row = {std::to_string(r["workers"].get<int>()),
                                    std::to_string(r["threads_each"].get<int>())};
    for (const char* key : {"plain_ms", "dense_ms", "dgc_ms"})
      row.push_back(fmt::format("{:.1f}", number(r, key)));
    row.push_back(fmt::format("{:.1f}", 100.0 * number(r, "dense_extra_share")));
    row.push_back(fmt::format("{:.1f}", number(r, "extra_ms")));
    for (const char* key : {"extra_share", "extra_cpu_share"})
      row.push_back(fmt::format("{:.1f}", 100.0 * number(r, key)));
    for (const char* key :
         {"compress_ms", "encode_ms", "exchange_ms", "waiting_ms", "apply_ms", "statistics_ms"})
      row.push_back(fmt::format("{:.2f}", number(r, key)));
    row.push_back(fmt::format("{:.0f}", number(r, "message_ratio")));
    rows.push_back(row);
  }
  fmt::print("{}\n", process::table(rows));
  fmt::print(
      "p50 of each; extra is the p50 of the differences between neighbouring steps, and its share "
      "of the plain step. compress, encode and exchange run beside backward (overlap {}); waiting "
      "and apply do not.\n",
      results[0]["overlap"].get<std::string>());
}

void print(const json& results, const TorchOptions& options) {
  if (options.as_json) {
    fmt::print("{}\n", results.dump(2));
    return;
  }
  fmt::print(
      "{}, batch {}{} each, momentum 0.9, ratio {}, {} values; workers are {}; plain is "
      "torch::optim::SGD, several plain workers exchange nothing\n\n",
      options.model, options.batch,
      options.model == "resnet50" ? fmt::format(" of {0}x{0}", options.image) : "", options.ratio,
      options.values, options.launch);
  print_table(results);
}

/// Starts the same command anew for each worker; rank 0 prints.
void run_processes(const TorchOptions& options) {
  if (options.workers.size() != 1) {
    throw Error(ErrorCode::invalid_argument, "bench torch", "--workers",
                "with --launch processes it is one number", "--workers 4");
  }
  const int workers = options.workers.front();
  std::vector<std::string> words = {"bench", "torch"};
  const auto add = [&words](const char* name, const auto& value) {
    words.push_back(fmt::format("{}={}", name, value));
  };
  add("--model", options.model);
  add("--batch", options.batch);
  add("--image", options.image);
  add("--ratio", options.ratio);
  add("--values", options.values);
  add("--algorithm", options.algorithm);
  add("--workers", workers);
  add("--cores", options.cores);
  add("--threads", options.threads);
  add("--launch", options.launch);
  add("--block", options.block);
  add("--steps", options.steps);
  add("--warmup", options.warmup);
  add("--seed", options.seed);
  if (options.no_overlap) words.emplace_back("--no-overlap");
  if (options.as_json) words.emplace_back("--json");
  if (options.quiet) words.emplace_back("--quiet");
  process::choose_fast_blas();
  const std::string threads = std::to_string(std::max(1, options.cores / workers));
  process::launch(
      {.workers = workers,
       .arguments = words,
       .engine = variable("DGC_ENGINE").value_or("shared"),
       .environment = {{"OMP_NUM_THREADS", threads}, {"OPENBLAS_NUM_THREADS", threads}}});
}

void run(TorchOptions options) {
  if (options.batch == 0)
    options.batch = options.model == "resnet50" ? 4 : options.model == "cnn" ? 32 : 20;
  parse_value_type(options.values);  // refuses what it does not know before any model is made
  parse_algorithm(options.algorithm);
  json results = json::array();
  if (options.launch == "threads") {
    for (const int workers : options.workers) results.push_back(measure_steps(options, workers));
  } else if (engine_from_environment() == "local") {
    run_processes(options);
    return;
  } else {
    results.push_back(measure_steps_as_rank(options));
    if (results[0].is_null()) return;
  }
  print(results, options);
}

}  // namespace

void add_bench_torch(CLI::App& bench) {
  auto* command = bench.add_subcommand("torch", "A training step of libtorch with and without dgc");
  command->footer(
      "Example:\n  dgc bench torch --batch 8 --steps 10\n"
      "  dgc bench torch --model lstm --workers 2 --ratio 0.01 --json\n"
      "  dgc bench torch --model cnn --batch 16 --workers 4 --launch processes --steps 100");
  auto o = std::make_shared<TorchOptions>();
  command->add_option("--model", o->model, "resnet50, cnn (28x28), lstm (words)")
      ->capture_default_str()
      ->check(CLI::IsMember({"resnet50", "cnn", "lstm"}));
  command
      ->add_option("--batch", o->batch,
                   "Examples of each worker's step (default: resnet50 4, cnn 32, lstm 20)")
      ->check(CLI::Range(1, 65536));
  add_ranged(command, "--image", o->image, "Width and height of images, for resnet50", 32, 1024);
  add_ratio(command, o->ratio);
  add_values(command, o->values);
  command
      ->add_option("--algorithm", o->algorithm,
                   fmt::format("Exchange: one of {}", fmt::join(names_of(algorithms()), ", ")))
      ->capture_default_str();
  command->add_option("--workers", o->workers, "Numbers of workers to measure")
      ->delimiter(',')
      ->capture_default_str()
      ->check(CLI::Range(1, 64));
  command->add_option("--launch", o->launch, "Workers are threads or processes")
      ->capture_default_str()
      ->check(CLI::IsMember({"threads", "processes"}));
  add_ranged(command, "--cores", o->cores, "Cores that the workers share", 1, 1024);
  add_ranged(command, "--threads", o->threads, "Threads of each worker's compression", 1, 1024);
  command->add_flag("--no-overlap", o->no_overlap, "Compress after backward instead of during it");
  add_ranged(command, "--block", o->block,
             "Steps that are timed as one: inside, plain workers do not wait for each other", 1,
             1'000'000);
  add_steps(command, o->steps);
  add_warmup(command, o->warmup);
  command->add_option("--seed", o->seed, "Seed of the weights and the data")->capture_default_str();
  add_output(command, o->as_json, o->quiet);
  command->callback([o] { run(*o); });
}

}  // namespace dgc::bench
