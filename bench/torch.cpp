#include "bench/torch.h"

#include <fmt/format.h>

#include <memory>

#include "bench/bench.h"
#include "bench/options.h"
#include "dgc/exchange.h"
#include "process/terminal.h"

namespace dgc::bench {
namespace {

using nlohmann::json;

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
  fmt::print("{}\n", process::table(rows));
  fmt::print(
      "p50 of each; extra is the p50 of the differences between neighbouring steps, and its share "
      "of the plain step. compress, encode and exchange run beside backward (overlap {}); waiting "
      "and apply do not.\n",
      results[0]["overlap"].get<std::string>());
}

void run(TorchOptions options) {
  if (options.batch == 0)
    options.batch = options.model == "resnet50" ? 4 : options.model == "cnn" ? 32 : 20;
  parse_value_type(options.values);  // refuses what it does not know before any model is made
  parse_algorithm(options.algorithm);
  json results = json::array();
  for (const int workers : options.workers) results.push_back(measure_steps(options, workers));
  if (options.as_json) {
    fmt::print("{}\n", results.dump(2));
    return;
  }
  fmt::print(
      "{}, batch {}{} each, momentum 0.9, ratio {}, {} values; plain is torch::optim::SGD, "
      "several plain workers exchange nothing\n\n",
      options.model, options.batch,
      options.model == "resnet50" ? fmt::format(" of {0}x{0}", options.image) : "", options.ratio,
      options.values);
  print_table(results);
}

}  // namespace

void add_bench_torch(CLI::App& bench) {
  auto* command = bench.add_subcommand("torch", "A training step of libtorch with and without dgc");
  command->footer(
      "Example:\n  dgc bench torch --batch 8 --steps 10\n"
      "  dgc bench torch --model lstm --workers 2 --ratio 0.01 --json");
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
                   "Exchange: auto, allgather, owner, dense or hierarchical")
      ->capture_default_str();
  command->add_option("--workers", o->workers, "Numbers of workers to measure, as threads")
      ->delimiter(',')
      ->capture_default_str()
      ->check(CLI::Range(1, 64));
  add_ranged(command, "--cores", o->cores, "Cores that the workers share", 1, 1024);
  add_ranged(command, "--threads", o->threads, "Threads of each worker's compression", 1, 1024);
  command->add_flag("--no-overlap", o->no_overlap, "Compress after backward instead of during it");
  add_steps(command, o->steps);
  add_warmup(command, o->warmup);
  command->add_option("--seed", o->seed, "Seed of the weights and the data")->capture_default_str();
  add_output(command, o->as_json, o->quiet);
  command->callback([o] { run(*o); });
}

}  // namespace dgc::bench
