// dgc bench hub: what a hub needs for its members. Hub and members are in this process, on links
// and a clock that are computed (hub/local_hub.h); the hub's processor time is counted apart.
#include <fmt/format.h>
#include <malloc.h>

#include <chrono>
#include <filesystem>

#include "base/temporary_folder.h"
#include "base/units.h"
#include "bench/bench.h"
#include "bench/options.h"
#include "dgc/error.h"
#include "hub/local_hub.h"
#include "process/terminal.h"

namespace dgc::bench {
namespace {

struct Options {
  std::vector<int> members = {32};
  std::vector<std::string> down = {"forward", "select"};
  std::uint64_t elements = 100'000;
  double ratio = 0.001;
  int rounds = 20;
  bool as_json = false, quiet = false;
};

/// Bytes that are allocated now.
double allocated() {
  const struct ::mallinfo2 info = ::mallinfo2();
  return static_cast<double>(info.uordblks + info.hblkhd);
}

/// Members save what they send: not on a disk, which is not what is measured.
std::filesystem::path fast_folder() {
  return std::filesystem::exists("/dev/shm") ? "/dev/shm" : std::filesystem::path();
}

hub::LocalHub::Options hub_options(const Options& options, hub::Down down,
                                   std::vector<hub::CommitLine>& lines) {
  hub::LocalHub::Options made;
  made.hub.terms = {.down = down, .momentum = 0.0f, .save_every = 1'000'000};
  made.hub.settings = "{}";
  made.plan.rounds = static_cast<std::uint64_t>(options.rounds) + 5;
  made.plan.epochs = 1e3;
  made.plan.batch = 1;
  made.plan.evaluate_every = 1'000'000;
  made.plan.pace = [ratio = options.ratio](const auto&) {
    return hub::HubPlan::Pace{.lr = 0.01, .inner_lr = 0.0, .ratio = ratio};
  };
  made.model = {{"w", {static_cast<std::int64_t>(options.elements)}, false}};
  made.positions = 1'000'000;
  made.watcher.committed = [&lines](const hub::CommitLine& line) { lines.push_back(line); };
  return made;
}

nlohmann::json measure(const Options& options, int members, hub::Down down) {
  const TemporaryFolder folder("dgc-bench-", fast_folder());
  std::vector<hub::CommitLine> lines;
  hub::LocalHub local(folder.path(), hub_options(options, down, lines));
  std::vector<float> gradient(options.elements);
  GradientSource source("gaussian", 1);
  hub::LocalHub::Worker worker;
  worker.link = {.bytes_per_second = 2.5e6, .delay = std::chrono::milliseconds(25)};
  worker.compute = [&](hub::Member& member) {
    source.fill(gradient, 0.01f);
    return hub::Contribution{.gradients = {{0, gradient}},
                             .examples = static_cast<std::uint64_t>(member.lease().count)};
  };
  for (int i = 0; i < members; ++i) local.join(fmt::format("m{}", i), worker);

  const auto until = [&](std::uint64_t rounds) {
    if (!local.run(1e5, [&] { return lines.size() >= rounds; })) {
      throw Error(ErrorCode::internal, "bench hub", "rounds", "do not close");
    }
  };
  until(3);  // all have joined
  const double before = local.hub_seconds();
  const double since = local.now();
  const std::uint64_t first = lines.size();
  until(first + static_cast<std::uint64_t>(options.rounds));
  const double seconds = local.hub_seconds() - before;
  const auto rounds = static_cast<double>(lines.size() - first);
  const double round_seconds = (local.now() - since) / rounds;
  double inside = 0.0;
  for (std::size_t i = first; i < lines.size(); ++i)
    inside += static_cast<double>(lines[i].members);
  const auto bytes = [&](auto field) {
    return static_cast<double>(lines.back().*field - lines.at(first - 1).*field) / inside;
  };
  // With a round that is full but for one message: what the hub has is what goes with it.
  local.run(1e3, [&] { return local.hub()->rounds().inside().size() + 1 >= std::size_t(members); });
  const double memory = allocated();
  local.kill_hub();
  const double freed = memory - allocated();
  const double parameters = static_cast<double>(options.elements) * sizeof(float) *
                            (down == hub::Down::select ? 2.0 : 1.0);
  return {{"members", members},
          {"down", name_of(down)},
          {"elements", options.elements},
          {"ratio", options.ratio},
          {"rounds", rounds},
          {"members_in_a_round", inside / rounds},
          {"hub_ms_per_round", 1e3 * seconds / rounds},
          {"hub_us_per_message", 1e6 * seconds / inside},
          {"rounds_per_second_of_hub", rounds / seconds},
          {"seconds_per_round", round_seconds},
          {"bytes_up_per_message", bytes(&hub::CommitLine::bytes_up)},
          {"bytes_down_per_message", bytes(&hub::CommitLine::bytes_down)},
          {"hub_bytes", freed},
          {"hub_bytes_per_member", (freed - parameters) / members}};
}

void print(const nlohmann::json& results, const Options& options) {
  fmt::print(
      "{} elements, ratio {}, links of 20 Mbps and 25 ms; processor time of the hub alone, without "
      "TLS; memory beside parameters and the hub's residual\n\n",
      grouped(options.elements), options.ratio);
  std::vector<std::vector<std::string>> rows = {
      {"members", "down", "in a round", "hub ms/round", "hub us/message", "rounds/s of the hub",
       "ms/round on the links", "kB up", "kB down", "kB/member"}};
  for (const auto& r : results) {
    const auto cell = [&](const char* name, double factor, int digits) {
      return fmt::format("{:.{}f}", r[name].get<double>() * factor, digits);
    };
    rows.push_back({cell("members", 1, 0), r["down"], cell("members_in_a_round", 1, 1),
                    cell("hub_ms_per_round", 1, 2), cell("hub_us_per_message", 1, 1),
                    cell("rounds_per_second_of_hub", 1, 1), cell("seconds_per_round", 1e3, 1),
                    cell("bytes_up_per_message", 1e-3, 2), cell("bytes_down_per_message", 1e-3, 2),
                    cell("hub_bytes_per_member", 1e-3, 1)});
  }
  fmt::print("{}\n", process::table(rows));
}

void run(const Options& options) {
  nlohmann::json results = nlohmann::json::array();
  process::ProgressBar progress("bench hub", options.members.size() * options.down.size(),
                                options.quiet);
  for (const int members : options.members) {
    for (const std::string& down : options.down) {
      results.push_back(measure(options, members, hub::parse_down(down)));
      progress.advance();
    }
  }
  if (options.as_json) {
    fmt::print("{}\n", results.dump(2));
  } else {
    print(results, options);
  }
}

}  // namespace

void add_bench_hub(CLI::App& bench) {
  auto* command = bench.add_subcommand("hub", "Processor time and memory that a hub needs");
  command->footer(
      "Hub and members are in this process; links and clock are computed, so that a thousand "
      "members fit.\n\nExample:\n  dgc bench hub --members 32,1000\n"
      "  dgc bench hub --members 8 --down select --elements 1000000 --json");
  auto o = std::make_shared<Options>();
  command->add_option("--members", o->members, "Members, separated by commas")
      ->delimiter(',')
      ->capture_default_str()
      ->check(CLI::Range(1, 100'000));
  command->add_option("--down", o->down, "What goes down to members: forward, select, or both")
      ->delimiter(',')
      ->capture_default_str();
  add_elements(command, o->elements, "Parameters of the model");
  add_ratio(command, o->ratio);
  add_ranged(command, "--rounds", o->rounds, "Rounds to measure", 1, 100'000);
  add_output(command, o->as_json, o->quiet);
  command->callback([o] { run(*o); });
}

}  // namespace dgc::bench
