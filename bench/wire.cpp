// dgc bench wire: size of the wire format against the entropy bound, and its speed.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "base/buffer.h"
#include "bench/bench.h"
#include "bench/options.h"
#include "dgc/error.h"
#include "dgc/wire.h"
#include "process/terminal.h"

namespace dgc::bench {
namespace {

struct Options {
  std::uint64_t elements = 25'600'000;
  double ratio = 0.001;
  int messages = 8;
  int repeat = 30;
  std::uint64_t seed = 1;
  bool no_verify = false;
  bool as_json = false;
  bool quiet = false;
};

struct Case {
  std::string positions;  // uniform, rows, patches
  double ratio;
  ValueType values;
  IndexCoding coding;
};

constexpr std::uint64_t kRow = 1500;  // columns of the paper's LSTM

/// k distinct positions below n, ascending: whole rows where `positions` is "rows", a tenth of the
/// elements of some rows where it is "patches".
std::vector<std::uint32_t> draw_positions(const Case& c, std::uint64_t n, std::uint64_t k,
                                          std::mt19937_64& random) {
  std::vector<bool> taken(n, false);
  std::uint64_t left = k;
  const auto take = [&](std::uint64_t i) {
    if (left == 0 || i >= n || taken[i]) return;
    taken[i] = true;
    --left;
  };
  std::uniform_int_distribution<std::uint64_t> element(0, n - 1);
  while (left > 0) {
    if (c.positions == "uniform") {
      take(element(random));
      continue;
    }
    const std::uint64_t begin = element(random) / kRow * kRow;
    const bool whole = c.positions == "rows" || n < 10 * k;
    for (std::uint64_t j = 0; j < kRow; ++j) {
      if (whole || random() % 10 == 0) take(begin + j);
    }
  }
  std::vector<std::uint32_t> indices;
  indices.reserve(k);
  for (std::uint64_t i = 0; i < n; ++i) {
    if (taken[i]) indices.push_back(static_cast<std::uint32_t>(i));
  }
  return indices;
}

/// Magnitudes as a selection leaves them: the tail of a Gaussian beyond 3.3.
std::vector<float> draw_values(std::size_t count, std::mt19937_64& random) {
  std::vector<float> values(count);
  std::exponential_distribution<float> tail(3.3f);
  for (float& v : values) v = (random() & 1) != 0 ? 3.3f + tail(random) : -3.3f - tail(random);
  return values;
}

/// L2 norm of what rounding leaves behind, over that of the values.
double relative_error(std::span<const float> values, std::span<const float> decoded) {
  double error = 0.0;
  double all = 0.0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double difference = static_cast<double>(values[i]) - static_cast<double>(decoded[i]);
    error += difference * difference;
    all += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  }
  return std::sqrt(error / all);
}

struct Encoded {
  std::vector<std::byte> message;
  std::vector<float> decoded;
  FrameInfo info;
};

Encoded encode(const FrameInput& input) {
  Encoded result;
  result.message.resize(kMessageOverhead + frame_bound(input.elements, input.values.size(),
                                                       input.value_type, input.coding));
  result.decoded.resize(input.values.size());
  MessageWriter writer(result.message, {});
  result.info = writer.add(input, result.decoded);
  result.message.resize(writer.finish());
  return result;
}

void check(bool ok, const std::string& what) {
  if (ok) return;
  throw Error(ErrorCode::invalid_argument, "verify", what, "decodes to something else",
              "the benchmark computed a wrong result: this is a bug in dgc");
}

nlohmann::json run_case(const Options& options, const Case& c, FloatBuffer& target,
                        std::mt19937_64& random) {
  const std::uint64_t n = options.elements;
  const auto k =
      static_cast<std::uint64_t>(std::max(1.0, std::round(c.ratio * static_cast<double>(n))));
  const std::vector<std::uint32_t> indices = draw_positions(c, n, k, random);
  const std::vector<float> values = draw_values(indices.size(), random);
  const FrameInput input{.tensor = 0,
                         .elements = n,
                         .indices = indices,
                         .values = values,
                         .value_type = c.values,
                         .coding = c.coding};
  Encoded result = encode(input);
  const std::string label =
      fmt::format("{} {} {}", c.positions, name_of(c.coding), name_of(c.values));
  if (!options.no_verify) {
    const std::vector<Entries> frames = decode_entries(CheckedMessage(result.message), n);
    check(frames.size() == 1 && frames[0].indices == indices && frames[0].values == result.decoded,
          label);
  }
  Timings encoding;
  Timings inspecting;
  Timings adding;
  const std::span<float> targets[] = {target.span()};
  // Fewer runs where a message is large, so that the whole takes seconds.
  const int repeat =
      std::max(3, static_cast<int>(options.repeat * std::min(1.0, 1e5 / static_cast<double>(k))));
  std::vector<std::byte> buffer(result.message.size() + frame_bound(n, k, c.values, c.coding));
  for (int i = 0; i < repeat; ++i) {
    encoding.measure([&] {
      MessageWriter writer(buffer, {});
      writer.add(input, result.decoded);
      writer.finish();
    });
    inspecting.measure([&] { (void)CheckedMessage(result.message); });
    adding.measure([&] { decode_add(CheckedMessage(result.message), targets); });
  }
  const double bound = entropy_bits(n, k) / static_cast<double>(k);
  const auto per_entry = [k](std::uint64_t bytes) {
    return 8.0 * static_cast<double>(bytes) / static_cast<double>(k);
  };
  return {
      {"positions", c.positions},
      {"elements", n},
      {"ratio", c.ratio},
      {"entries", k},
      {"indices", name_of(result.info.coding)},
      {"values", name_of(c.values)},
      {"bytes", result.message.size()},
      {"bits_per_entry", per_entry(result.message.size())},
      {"index_bits", per_entry(result.info.index_bytes)},
      {"entropy_bits", bound},
      {"index_over_entropy", per_entry(result.info.index_bytes) / bound},
      {"value_error", relative_error(values, result.decoded)},
      {"header_bytes", result.info.header_bytes()},
      {"message_ratio", 4.0 * static_cast<double>(n) / static_cast<double>(result.message.size())},
      {"encode_ms", encoding.p50()},
      {"validate_ms", inspecting.p50()},
      {"decode_add_ms", adding.p50()},
      {"timings",
       {{"encode", encoding.json()},
        {"validate", inspecting.json()},
        {"decode_add", adding.json()}}},
      {"verified", !options.no_verify}};
}

/// The receiving side of an exchange: the messages of several workers onto one target.
nlohmann::json run_sum(const Options& options, FloatBuffer& target, std::mt19937_64& random) {
  const Case c{"uniform", options.ratio, ValueType::fp16, IndexCoding::automatic};
  const std::uint64_t n = options.elements;
  const auto k =
      static_cast<std::uint64_t>(std::max(1.0, std::round(c.ratio * static_cast<double>(n))));
  std::vector<std::vector<std::byte>> messages;
  std::fill(target.span().begin(), target.span().end(), 0.0f);
  double expected = 0.0;
  for (int m = 0; m < options.messages; ++m) {
    const std::vector<std::uint32_t> indices = draw_positions(c, n, k, random);
    const std::vector<float> values = draw_values(indices.size(), random);
    Encoded result = encode({.tensor = 0,
                             .elements = n,
                             .indices = indices,
                             .values = values,
                             .value_type = c.values,
                             .coding = c.coding});
    for (const float d : result.decoded) expected += static_cast<double>(d);
    messages.push_back(std::move(result.message));
  }
  const std::span<float> targets[] = {target.span()};
  Timings adding;
  for (int i = 0; i < options.repeat; ++i) {
    adding.measure([&] {
      for (const auto& message : messages) decode_add(CheckedMessage(message), targets);
    });
  }
  if (!options.no_verify) {
    double sum = 0.0;
    for (const float x : target.span()) sum += static_cast<double>(x);
    const double tolerance = 1e-4 * static_cast<double>(k) * options.repeat;
    check(std::fabs(sum - expected * options.repeat) <= tolerance, "sum of messages");
  }
  return {{"positions", "uniform"},
          {"elements", n},
          {"ratio", c.ratio},
          {"entries", k},
          {"messages", options.messages},
          {"values", name_of(c.values)},
          {"sum_ms", adding.p50()},
          {"timings", {{"sum", adding.json()}}},
          {"verified", !options.no_verify}};
}

void print_table(const nlohmann::json& results) {
  std::vector<std::vector<std::string>> rows = {
      {"positions", "ratio", "indices", "values", "bits/entry", "index bits", "entropy", "over",
       "less than fp32", "error %", "encode ms", "validate ms", "add ms"}};
  for (const auto& r : results) {
    if (!r.contains("index_bits")) continue;
    const auto number = [&r](const char* key, int digits) {
      return fmt::format("{:.{}f}", r[key].get<double>(), digits);
    };
    rows.push_back({r["positions"], fmt::format("{}", r["ratio"].get<double>()), r["indices"],
                    r["values"], number("bits_per_entry", 2), number("index_bits", 3),
                    number("entropy_bits", 3), number("index_over_entropy", 4),
                    number("message_ratio", 0) + "x",
                    fmt::format("{:.2f}", 100.0 * r["value_error"].get<double>()),
                    number("encode_ms", 3), number("validate_ms", 3), number("decode_add_ms", 3)});
  }
  fmt::print("{}\n", process::table(rows));
  for (const auto& r : results) {
    if (!r.contains("sum_ms")) continue;
    const auto& t = r["timings"]["sum"];
    fmt::print(
        "{} messages of {} entries added to {} floats on one thread: min {:.2f}, p50 {:.2f}, p99 "
        "{:.2f} ms{}\n",
        r["messages"].get<int>(), grouped(r["entries"].get<std::uint64_t>()),
        grouped(r["elements"].get<std::uint64_t>()), t["min_ms"].get<double>(),
        t["p50_ms"].get<double>(), t["p99_ms"].get<double>(),
        r["verified"].get<bool>() ? "; verified" : "");
  }
}

void run(const Options& options) {
  std::vector<Case> cases;
  for (const ValueType type : {ValueType::fp32, ValueType::fp16, ValueType::bf16, ValueType::int8,
                               ValueType::sign, ValueType::table2, ValueType::table4}) {
    if (type == ValueType::fp32)
      cases.push_back({"uniform", options.ratio, type, IndexCoding::runs});
    cases.push_back({"uniform", options.ratio, type, IndexCoding::automatic});
  }
  for (const double factor : {10.0, 100.0}) {
    if (options.ratio * factor <= 1.0)
      cases.push_back({"uniform", options.ratio * factor, ValueType::fp16, IndexCoding::automatic});
  }
  cases.push_back({"rows", options.ratio, ValueType::fp16, IndexCoding::automatic});
  cases.push_back({"patches", options.ratio, ValueType::fp16, IndexCoding::automatic});

  std::mt19937_64 random(options.seed);
  FloatBuffer target(options.elements);
  nlohmann::json results = nlohmann::json::array();
  process::ProgressBar progress("bench wire", cases.size() + 1, options.quiet);
  for (const Case& c : cases) {
    results.push_back(run_case(options, c, target, random));
    progress.advance();
  }
  results.push_back(run_sum(options, target, random));
  if (options.as_json) {
    fmt::print("{}\n", results.dump(2));
  } else {
    print_table(results);
  }
}

}  // namespace

void add_bench_wire(CLI::App& bench) {
  auto* command =
      bench.add_subcommand("wire", "Size against the entropy bound, speed of encoding and adding");
  command->footer(
      "Positions: uniform at random; rows: whole rows of 1,500; patches: a tenth of some rows.\n"
      "\"over\" is index bits over the entropy bound of uniform positions.\n\n"
      "Example:\n  dgc bench wire\n  dgc bench wire --elements 1000000 --ratio 0.01 --json");
  auto o = std::make_shared<Options>();
  add_elements(command, o->elements, "Elements of the tensor", 1000);
  add_ratio(command, o->ratio, "Share that is sent; 10 and 100 times it are measured too");
  add_ranged(command, "--messages", o->messages, "Messages to add up at the receiver", 1, 4096);
  add_ranged(command, "--repeat", o->repeat, "Runs of each measurement", 1, 100'000);
  command->add_option("--seed", o->seed, "Seed of positions and values")->capture_default_str();
  command->add_flag("--no-verify", o->no_verify, "Skip the comparison of what was decoded");
  add_output(command, o->as_json, o->quiet);
  command->callback([o] { run(*o); });
}

}  // namespace dgc::bench
