// dgc bench exchange: bytes, messages and time of each algorithm, among workers on this machine or
// among those that mpirun (or RANK and WORLD_SIZE) started.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <memory>
#include <optional>
#include <thread>

#include "base/environment.h"
#include "bench/bench.h"
#include "bench/exchange_rows.h"
#include "bench/options.h"
#include "dgc/engines.h"
#include "process/launcher.h"
#include "process/rendezvous.h"
#include "process/terminal.h"

namespace dgc::bench {
namespace {

using namespace exchange_bench;

std::uint64_t available_memory() {
  std::ifstream file("/proc/meminfo");
  for (std::string key; file >> key;) {
    std::uint64_t kilobytes = 0;
    if (key == "MemAvailable:" && file >> kilobytes) return kilobytes * 1024;
    file.ignore(256, '\n');
  }
  return UINT64_MAX;
}

/// Refuses what would not fit: the gradient, and of each algorithm u, v and parameters. All are
/// there at the same time, because they take turns; the arrays and messages of a step are not.
void check_memory(const Options& options) {
  std::uint64_t per_element = 4;
  std::uint64_t of_a_step = 8;
  for (const std::string& algorithm : contender_names()) {
    if (!options.wants(algorithm)) continue;
    const bool plain = algorithm == kPlain || algorithm == kNative;
    per_element += plain ? 4 : 12;
    if (algorithm == "auto" || algorithm == "dense" || in_shares(algorithm)) of_a_step = 20;
  }
  const std::uint64_t needed =
      options.elements * (per_element + of_a_step) * static_cast<std::uint64_t>(options.workers);
  const std::uint64_t available = available_memory();
  if (needed <= available) return;
  throw Error(ErrorCode::invalid_argument, "bench exchange",
              fmt::format("{} workers of {} elements", options.workers, grouped(options.elements)),
              fmt::format("need {}, {} are free", bytes_text(static_cast<double>(needed)),
                          bytes_text(static_cast<double>(available))),
              "fewer --elements or --workers, or fewer algorithms: --algorithm allgather,owner");
}

std::chrono::milliseconds timeout_of(const Options& options) {
  return std::chrono::milliseconds(std::llround(options.timeout * 1e3));
}

std::unique_ptr<Group> over_link(std::unique_ptr<Group> group, const Options& options) {
  if (options.link.empty()) return group;
  return make_emulated_link(std::move(group), parse_link("--link", options.link));
}

nlohmann::json run_threads(const Options& options) {
  auto groups = make_local_groups(options.workers, timeout_of(options));
  for (auto& group : groups) group = over_link(std::move(group), options);
  std::vector<std::optional<Error>> errors(groups.size());
  nlohmann::json results;
  {
    std::vector<std::jthread> threads;
    for (std::size_t r = 0; r < groups.size(); ++r) {
      threads.emplace_back([&, r] {
        try {
          nlohmann::json mine = work(*groups[r], options);
          if (r == 0) results = std::move(mine);
        } catch (const Error& error) {
          errors[r] = error;
        }
      });
    }
  }
  // What others were told is not the cause.
  for (const bool told : {false, true}) {
    for (const auto& error : errors) {
      if (error && (error->code() == ErrorCode::peer_failed) == told) throw Error(*error);
    }
  }
  return results;
}

/// Processes, of which rank 0 prints the results.
void run_processes(const Options& options, const std::string& engine) {
  std::vector<std::string> words = {"bench", "exchange", "--engine", engine};
  const auto add = [&words](const char* name, const auto& value) {
    words.emplace_back(name);
    words.push_back(fmt::format("{}", value));
  };
  add("--elements", options.elements);
  add("--ratio", options.ratio);
  add("--algorithm", fmt::format("{}", fmt::join(options.algorithms, ",")));
  add("--values", options.values);
  add("--steps", options.steps);
  add("--timeout", options.timeout);
  if (!options.link.empty()) add("--link", options.link);
  if (!options.assume.empty()) add("--assume-link", options.assume);
  if (options.no_verify) words.emplace_back("--no-verify");
  if (options.as_json) words.emplace_back("--json");
  if (options.quiet) words.emplace_back("--quiet");
  process::launch({.workers = options.workers, .arguments = words, .engine = engine});
}

void print(const nlohmann::json& results, const Options& options) {
  if (options.as_json) {
    fmt::print("{}\n", results.dump(2));
    return;
  }
  fmt::print(
      "{} elements as resnet50, ratio {}, {} values, {} steps; bytes and messages of a step, for "
      "the worker that has most; time of the slowest worker\n\n",
      grouped(options.elements), options.ratio, options.values, options.steps);
  std::vector<std::vector<std::string>> rows = {{"algorithm", "engine", "workers", "MB sent",
                                                 "MB received", "messages", "min ms", "p50 ms",
                                                 "p99 ms", "less than dense"}};
  for (const auto& r : results) {
    const std::string algorithm = r["algorithm"];
    rows.push_back({algorithm == kPlain ? "all_reduce fp32 (no compression)" : algorithm,
                    r["engine"], std::to_string(r["workers"].get<int>()),
                    fmt::format("{:.3f}", r["bytes_sent"].get<double>() / 1e6),
                    fmt::format("{:.3f}", r["bytes_received"].get<double>() / 1e6),
                    std::to_string(r["messages"].get<std::uint64_t>()),
                    fmt::format("{:.1f}", r["min_ms"].get<double>()),
                    fmt::format("{:.1f}", r["p50_ms"].get<double>()),
                    fmt::format("{:.1f}", r["p99_ms"].get<double>()),
                    fmt::format("{:.1f}", r["less_than_dense"].get<double>())});
  }
  fmt::print("{}\n", process::table(rows));
  for (const auto& r : results) {
    if (r["algorithm"] == "auto") {
      fmt::print("auto: {}; {}\n", r["choice"].get<std::string>(), r["costs"].get<std::string>());
    }
    if (in_shares(r["algorithm"])) {
      fmt::print("{}: {} hosts of {}\n", r["algorithm"].get<std::string>(), r["hosts"].get<int>(),
                 r["workers"].get<int>() / r["hosts"].get<int>());
    }
  }
  fmt::print("{}\n", options.no_verify ? "not verified" : "verified");
}

void run(const Options& options) {
  settings_of(options);  // wrong values are reported here and not by every worker
  if (!options.link.empty()) parse_link("--link", options.link);
  options.assumed_link();
  const std::vector<std::string> built = engines();
  const bool has_gloo = std::find(built.begin(), built.end(), "gloo") != built.end();
  const std::string started_for = engine_from_environment();
  std::string engine = options.engine;
  if (engine.empty() || engine == "auto") {
    engine = started_for != "local" ? started_for : has_gloo ? "gloo" : "local";
  }
  if (engine == "mpi" && started_for != "mpi") {
    throw Error(ErrorCode::invalid_argument, "bench exchange", "engine mpi",
                "this is not inside an mpirun",
                fmt::format("mpirun -n {} dgc bench exchange --engine mpi", options.workers));
  }
  const bool joins =
      engine == "mpi" || (engine != "local" && variable("RANK") && variable("WORLD_SIZE"));
  if (joins) {
    auto joined = process::join_group(engine, timeout_of(options));
    const std::string note = process::security_note(*joined);
    const auto group = over_link(std::move(joined), options);
    if (group->rank() == 0 && !note.empty()) process::say(note + "\n");
    const nlohmann::json results = work(*group, options);
    if (group->rank() == 0) print(results, options);
    return;
  }
  check_memory(options);
  if (engine == "local") {
    print(run_threads(options), options);
    return;
  }
  if (engine == "gloo" && !has_gloo) make_group("gloo");  // throws, and says what is missing
  run_processes(options, engine);
}

}  // namespace

void add_bench_exchange(CLI::App& bench) {
  auto* command = bench.add_subcommand(
      "exchange", "Bytes, messages and time of each exchange algorithm among several workers");
  command->footer(
      "Workers are started here: threads (local) or processes (shared memory, gloo). Inside "
      "mpirun, or\n"
      "with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set, this process joins the others, and\n"
      "rank 0 prints.\n\n"
      "Example:\n  dgc bench exchange --workers 8 --algorithm allgather,owner\n"
      "  dgc bench exchange --engine local --workers 32 --elements 2000000 --json\n"
      "  dgc bench exchange --link 100Mbps,25ms             what would my network do?\n"
      "  mpirun -n 4 dgc bench exchange --engine mpi");
  auto o = std::make_shared<Options>();
  command
      ->add_option(
          "--engine", o->engine,
          "local, shared, gloo, mpi or auto (default: that of mpirun or torchrun; elsewhere gloo, "
          "or local where gloo is not built in)")
      ->check(CLI::IsMember({"local", "shared", "gloo", "mpi", "auto"}));
  auto* workers = add_ranged(command, "--workers", o->workers, "Workers to start", 1, 1024);
  add_elements(command, o->elements, "Number of parameters");
  add_ratio(command, o->ratio);
  std::vector<std::string> names = {"all"};
  names.insert(names.end(), contender_names().begin(), contender_names().end());
  command
      ->add_option(
          "--algorithm", o->algorithms,
          fmt::format("Any of {}; all_reduce sends the floats themselves", fmt::join(names, ", ")))
      ->delimiter(',')
      ->capture_default_str()
      ->check(CLI::IsMember(names));
  add_values(command, o->values);
  add_steps(command, o->steps, "Steps to measure of each algorithm");
  add_ranged(command, "--timeout", o->timeout, "Seconds that a worker waits for another", 0.001,
             1e6);
  command->add_option("--link", o->link,
                      "Emulate a link in front of each worker, such as 100Mbps,25ms");
  command->add_option("--assume-link", o->assume,
                      "Link by which auto chooses, such as 1Gbps,1ms (default: measured)");
  command->add_flag("--no-verify", o->no_verify,
                    "Skip the comparison with a plain sum and of the workers' parameters");
  add_output(command, o->as_json, o->quiet);
  command->callback([o, workers] {
    o->workers_given = workers->count() > 0;
    run(*o);
  });
}

}  // namespace dgc::bench
