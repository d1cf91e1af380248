// dgc bench compress: a whole compression step against the floor that memory sets.
//
// Floor, memcpy and step alternate on the same buffers in the same run, because machines are shared
// and noisy: only the ratio within a run means anything.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>

#include "base/buffer.h"
#include "base/file.h"
#include "base/parallel.h"
#include "bench/bench.h"
#include "bench/options.h"
#include "compress/update.h"
#include "dgc/compressor.h"
#include "dgc/error.h"
#include "dgc/target.h"
#include "process/terminal.h"

namespace dgc::bench {
namespace {

struct Options {
  std::uint64_t elements = 25'600'000;
  double ratio = 0.001;
  std::vector<int> threads = {1};
  std::vector<std::string> kinds = {"gaussian", "student"};
  std::string shapes = "resnet50";
  std::string input;
  std::string selection = "reuse";
  std::string values = "fp32";
  std::string indices = "auto";
  std::string momentum_correction = "local";
  float momentum = 0.9f;
  bool nesterov = false;
  float residual_decay = 1.0f;
  int steps = 30;
  int warmup = 100;
  std::uint64_t seed = 1;
  bool no_verify = false;
  bool as_json = false;
  bool quiet = false;
};

// Each worker adds what all of these sent, of which this one is the only one here.
constexpr std::uint32_t kWorkers = 4;

/// The bare momentum update: 3 reads and 2 writes an element. Nothing that keeps u and v can be
/// faster.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
void floor_update(const float* __restrict g, float* __restrict u, float* __restrict v,
                  std::size_t count, float m) {
  for (std::size_t i = 0; i < count; ++i) {
    u[i] = m * u[i] + g[i];
    v[i] = v[i] + u[i];
  }
}

/// The same without a velocity: 2 reads and 1 write.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
void floor_sum(const float* __restrict g, float* __restrict v, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) v[i] = v[i] + g[i];
}

/// Model, buffers and gradients of one benchmark.
class Fixture {
 public:
  Fixture(const Options& options, bool velocity, GradientSource source)
      : options_(options),
        layers_(options.shapes == "resnet50"
                    ? resnet50_layers(options.elements)
                    : std::vector<Layer>{{{"weight",
                                           {static_cast<std::int64_t>(options.elements)},
                                           false},
                                          1.0f}}),
        source_(std::move(source)),
        state_(specs(), 0, kWorkers, velocity),
        gradient_(options.elements),
        saved_u_(options.elements),
        saved_v_(options.elements) {
    std::size_t begin = 0;
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      const std::size_t count = layers_[i].spec.elements();
      gradients_.push_back({i, gradient_.span().subspan(begin, count)});
      begins_.push_back(begin);
      begin += count;
    }
  }

  State& state() { return state_; }
  std::span<const Gradient> gradients() const { return gradients_; }

  void new_gradients() {
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      source_.fill(gradient_.span().subspan(begins_[i], layers_[i].spec.elements()),
                   layers_[i].scale);
    }
  }
  void save() { copy_state(true); }
  void load() { copy_state(false); }
  std::span<const float> saved_u(std::size_t i) { return part(saved_u_, i); }
  std::span<const float> saved_v(std::size_t i) { return part(saved_v_, i); }

  void run_floor(ThreadPool& pool) {
    for_pieces(pool, [&](std::size_t tensor, std::size_t begin, std::size_t count) {
      const float* g = gradients_[tensor].values.data() + begin;
      float* v = state_.residual(tensor).data() + begin;
      if (!state_.has_velocity()) return floor_sum(g, v, count);
      floor_update(g, state_.velocity(tensor).data() + begin, v, count, options_.momentum);
    });
  }
  void run_memcpy(ThreadPool& pool) {
    for_pieces(pool, [&](std::size_t tensor, std::size_t begin, std::size_t count) {
      std::memcpy(state_.residual(tensor).data() + begin, gradients_[tensor].values.data() + begin,
                  count * sizeof(float));
    });
  }

 private:
  std::vector<TensorSpec> specs() const {
    std::vector<TensorSpec> all;
    for (const Layer& layer : layers_) all.push_back(layer.spec);
    return all;
  }
  std::span<float> part(FloatBuffer& buffer, std::size_t i) {
    return buffer.span().subspan(begins_[i], layers_[i].spec.elements());
  }
  void copy_state(bool out) {
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      const auto u = state_.velocity(i);
      const auto v = state_.residual(i);
      if (out) {
        std::copy(u.begin(), u.end(), part(saved_u_, i).begin());
        std::copy(v.begin(), v.end(), part(saved_v_, i).begin());
      } else {
        std::copy_n(saved_u(i).begin(), u.size(), u.begin());
        std::copy(saved_v(i).begin(), saved_v(i).end(), v.begin());
      }
    }
  }
  template <typename Work>
  void for_pieces(ThreadPool& pool, Work&& work) {
    constexpr std::size_t kPiece = 1 << 17;
    struct Piece {
      std::size_t tensor, begin, count;
    };
    std::vector<Piece> pieces;
    for (std::size_t t = 0; t < layers_.size(); ++t) {
      const std::size_t count = layers_[t].spec.elements();
      for (std::size_t b = 0; b < count; b += kPiece)
        pieces.push_back({t, b, std::min(kPiece, count - b)});
    }
    pool.run(pieces.size(),
             [&](std::size_t i, int) { work(pieces[i].tensor, pieces[i].begin, pieces[i].count); });
  }

  const Options& options_;
  std::vector<Layer> layers_;
  GradientSource source_;
  State state_;
  FloatBuffer gradient_;
  FloatBuffer saved_u_;
  FloatBuffer saved_v_;
  std::vector<Gradient> gradients_;
  std::vector<std::size_t> begins_;
};

/// Repeats the last step in plain C++ from the saved u and v, with a full sort for the selection,
/// and compares what was sent and what is left. After the commit: with global momentum it puts back
/// a part of what was sent.
void verify(Fixture& fixture, const Compressor& compressor, std::span<const std::byte> message) {
  const auto fail = [](const TensorSpec& spec, const std::string& problem) {
    throw Error(ErrorCode::invalid_argument, "verify", spec.name, problem,
                "the benchmark computed a wrong result: this is a bug in dgc");
  };
  const CompressOptions& options = compressor.options();
  std::vector<Entries> frames = decode_entries(CheckedMessage(message), UINT64_MAX);
  const State& state = fixture.state();
  std::size_t next_frame = 0;
  for (std::size_t t = 0; t < state.tensors().size(); ++t) {
    const TensorSpec& spec = state.tensors()[t];
    const std::size_t n = spec.elements();
    std::vector<float> u(fixture.saved_u(t).begin(), fixture.saved_u(t).end());
    std::vector<float> v(fixture.saved_v(t).begin(), fixture.saved_v(t).end());
    const float scale = 1.0f / static_cast<float>(state.workers());
    const float momentum = options.needs_velocity() ? options.momentum : 0.0f;
    const float factor = momentum != 0.0f ? momentum : options.residual_decay;
    compress::accumulate(compress::rule_of(momentum, options.nesterov, options.residual_decay),
                         fixture.gradients()[t].values, u, v, scale, factor);
    const std::size_t k =
        entries_at(options.schedule.ratio_at(static_cast<std::int64_t>(state.step())), n);
    std::vector<std::uint32_t> order(n);
    std::iota(order.begin(), order.end(), 0u);
    const auto larger = [&](std::uint32_t a, std::uint32_t b) {
      const float x = std::fabs(v[a]);
      const float y = std::fabs(v[b]);
      return x != y ? x > y : a < b;
    };
    if (k < n)
      std::nth_element(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(k), order.end(),
                       larger);
    order.resize(k);
    std::erase_if(order, [&](std::uint32_t i) { return v[i] == 0.0f; });
    std::sort(order.begin(), order.end());
    const bool has_frame = next_frame < frames.size() && frames[next_frame].tensor == t;
    if (!has_frame) {
      if (!order.empty()) fail(spec, "nothing was sent");
      continue;
    }
    const Entries& sent = frames[next_frame++];
    if (sent.indices != order) fail(spec, "the entries sent are not the largest ones");
    for (std::size_t i = 0; i < order.size(); ++i) {
      v[order[i]] -= sent.values[i];
      if (k < n && options.masking) u[order[i]] = 0.0f;
      v[order[i]] += options.feedback() / static_cast<float>(kWorkers) * sent.values[i];
    }
    const auto left = state.residual(t);
    const auto velocity = state.velocity(t);
    if (!std::equal(v.begin(), v.end(), left.begin())) fail(spec, "the residual is wrong");
    if (state.has_velocity() && !std::equal(u.begin(), u.end(), velocity.begin()))
      fail(spec, "the velocity is wrong");
  }
}

CompressOptions settings_of(const Options& options) {
  CompressOptions settings;
  settings.schedule = Schedule(options.ratio);
  settings.momentum = options.momentum;
  settings.momentum_correction = parse_momentum_correction(options.momentum_correction);
  if (options.nesterov && settings.momentum_correction != MomentumCorrection::local) {
    throw Error(ErrorCode::invalid_argument, "bench", "--nesterov",
                "changes the pass of local momentum correction only",
                "use --momentum-correction local");
  }
  settings.nesterov = options.nesterov;
  settings.residual_decay = options.residual_decay;
  settings.selection = parse_selection(options.selection);
  settings.values = parse_value_type(options.values);
  settings.indices = parse_index_coding(options.indices);
  return settings;
}

nlohmann::json run_one(const Options& options, CompressOptions settings, const std::string& kind,
                       GradientSource source, int threads) {
  Fixture fixture(options, settings.needs_velocity(), std::move(source));
  settings.threads = threads;
  Compressor compressor(fixture.state(), settings);
  ThreadPool pool(threads);
  std::vector<std::byte> message(compressor.bound());
  std::size_t bytes = 0;
  const auto step = [&] {
    bytes = compressor.compress(fixture.gradients(), message);
    if (settings.feedback() != 0.0f) {
      compressor.applied(CheckedMessage(std::span(message).first(bytes)));
    }
    compressor.commit();
  };

  Timings floor;
  Timings copy;
  Timings whole;
  std::uint64_t reselected = 0;
  std::uint64_t candidates = 0;
  process::ProgressBar progress(
      fmt::format("{}, {} thread{}", kind, threads, threads == 1 ? "" : "s"),
      static_cast<std::size_t>(options.warmup + options.steps), options.quiet);
  for (int i = 0; i < options.warmup; ++i) {
    fixture.new_gradients();
    step();
    progress.advance();
  }
  for (int i = 0; i < options.steps; ++i) {
    // Before each measurement the same writes, in the same order, leave the caches alike.
    fixture.save();
    fixture.new_gradients();
    copy.measure([&] { fixture.run_memcpy(pool); });
    fixture.load();
    fixture.new_gradients();
    floor.measure([&] { fixture.run_floor(pool); });
    fixture.load();
    fixture.new_gradients();
    whole.measure(step);
    for (const TensorStats& stat : compressor.stats()) {
      reselected += stat.reselected;
      candidates += stat.candidates;
    }
    if (i + 1 == options.steps && !options.no_verify)
      verify(fixture, compressor, std::span(message).first(bytes));
    progress.advance();
  }

  std::uint64_t target = 0;
  std::uint64_t sent = 0;
  double index_bytes = 0.0;
  double entropy = 0.0;
  for (std::size_t t = 0; t < compressor.stats().size(); ++t) {
    const TensorStats& stat = compressor.stats()[t];
    target += stat.target;
    sent += stat.sent;
    index_bytes += static_cast<double>(stat.frame.index_bytes);
    entropy += entropy_bits(fixture.state().tensors()[t].elements(), stat.sent);
  }
  const double entries = static_cast<double>(std::max<std::uint64_t>(sent, 1));
  return {
      {"kind", kind},
      {"elements", options.elements},
      {"tensors", compressor.stats().size()},
      {"ratio", options.ratio},
      {"threads", threads},
      {"target", active_target()},
      {"selection", options.selection},
      {"values", options.values},
      {"memcpy_ms", copy.p50()},
      {"floor_ms", floor.p50()},
      {"step_ms", whole.p50()},
      {"step_over_floor", whole.p50() / floor.p50()},
      {"k_target", target},
      {"k_sent", sent},
      {"candidates_over_k", static_cast<double>(candidates) / static_cast<double>(options.steps) /
                                static_cast<double>(target)},
      {"reselected_per_step", static_cast<double>(reselected) / options.steps},
      {"wire_bytes", bytes},
      {"message_ratio", 4.0 * static_cast<double>(options.elements) / static_cast<double>(bytes)},
      {"index_bits", index_bytes * 8.0 / entries},
      {"entropy_bits", entropy / entries},
      {"verified", !options.no_verify},
      {"timings", {{"memcpy", copy.json()}, {"floor", floor.json()}, {"step", whole.json()}}}};
}

std::vector<float> read_samples(const std::string& path) {
  const MappedFile file(path);
  const std::size_t count = file.contents().size() / sizeof(float);
  if (count == 0 || file.contents().size() % sizeof(float) != 0) {
    throw Error(ErrorCode::invalid_argument, "bench", path,
                fmt::format("{} bytes are not a whole number of float32", file.contents().size()),
                "write the gradient as raw little-endian float32");
  }
  std::vector<float> samples(count);
  std::memcpy(samples.data(), file.contents().data(), file.contents().size());
  for (std::size_t i = 0; i < count; ++i) {
    if (!std::isfinite(samples[i])) {
      throw Error(ErrorCode::nonfinite_gradient, "bench", path,
                  fmt::format("{} at index {}", samples[i], i));
    }
  }
  return samples;
}

void print_table(const nlohmann::json& results) {
  std::vector<std::vector<std::string>> rows = {
      {"gradients", "threads", "what", "min ms", "p50 ms", "p99 ms", "over floor"}};
  for (const auto& r : results) {
    for (const char* what : {"memcpy", "floor", "step"}) {
      const auto& t = r["timings"][what];
      rows.push_back(
          {r["kind"], std::to_string(r["threads"].get<int>()), what,
           fmt::format("{:.2f}", t["min_ms"].get<double>()),
           fmt::format("{:.2f}", t["p50_ms"].get<double>()),
           fmt::format("{:.2f}", t["p99_ms"].get<double>()),
           fmt::format("{:.2f}", t["p50_ms"].get<double>() / r["floor_ms"].get<double>())});
    }
  }
  fmt::print("{}\n", process::table(rows));
  for (const auto& r : results) {
    fmt::print(
        "{}, {} thread(s): {} of {} entries sent in {} ({:.0f}x less than fp32), indices "
        "{:.2f} bits each (uniform bound {:.2f}), {:.2f} candidates per entry, {:.2f} second "
        "passes a step; {}\n",
        r["kind"].get<std::string>(), r["threads"].get<int>(),
        grouped(r["k_sent"].get<std::uint64_t>()), grouped(r["k_target"].get<std::uint64_t>()),
        bytes_text(r["wire_bytes"].get<double>()), r["message_ratio"].get<double>(),
        r["index_bits"].get<double>(), r["entropy_bits"].get<double>(),
        r["candidates_over_k"].get<double>(), r["reselected_per_step"].get<double>(),
        r["verified"].get<bool>() ? "verified" : "not verified");
  }
}

void run(const Options& options) {
  const CompressOptions settings = settings_of(options);
  const std::vector<float> samples =
      options.input.empty() ? std::vector<float>{} : read_samples(options.input);
  nlohmann::json results = nlohmann::json::array();
  const auto kinds = options.input.empty() ? options.kinds : std::vector<std::string>{"file"};
  if (!options.as_json) {
    fmt::print(
        "{} elements as {}, ratio {}, {} selection, {} values, kernels {}; floor is the bare "
        "{}\n\n",
        grouped(options.elements), options.shapes, options.ratio, options.selection, options.values,
        active_target(), settings.needs_velocity() ? "u, v update" : "sum v + g");
  }
  for (const std::string& kind : kinds) {
    for (const int threads : options.threads) {
      GradientSource source = samples.empty() ? GradientSource(kind, options.seed)
                                              : GradientSource(samples, options.seed);
      results.push_back(run_one(options, settings, kind, std::move(source), threads));
    }
  }
  if (options.as_json) {
    fmt::print("{}\n", results.dump(2));
  } else {
    print_table(results);
  }
}

}  // namespace

void add_bench_compress(CLI::App& bench) {
  auto* command =
      bench.add_subcommand("compress", "A whole compression step against the memory floor");
  command->footer(
      "Example:\n  dgc bench compress --elements 25600000 --ratio 0.001 --threads 1,2\n"
      "  dgc bench compress --input gradient.f32 --values fp16 --json");
  auto o = std::make_shared<Options>();
  add_elements(command, o->elements, "Number of parameters");
  add_ratio(command, o->ratio);
  command->add_option("--threads", o->threads, "Thread counts to measure")
      ->delimiter(',')
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  command
      ->add_option("--kind", o->kinds,
                   "Distribution of the gradients: gaussian, or student (heavy tails)")
      ->delimiter(',')
      ->capture_default_str()
      ->check(CLI::IsMember({"gaussian", "student"}));
  command->add_option("--input", o->input, "Take gradients from this file of raw float32");
  command->add_option("--shapes", o->shapes, "Shapes of the tensors: resnet50, or a single one")
      ->capture_default_str()
      ->check(CLI::IsMember({"resnet50", "single"}));
  command
      ->add_option("--selection", o->selection, "How entries are selected: reuse, sampled or exact")
      ->capture_default_str();
  add_values(command, o->values);
  command
      ->add_option("--indices", o->indices, "How positions are coded: auto, rice, runs or bitmap")
      ->capture_default_str();
  command
      ->add_option(
          "--momentum-correction", o->momentum_correction,
          "Where momentum is: local (u and v), global (v, and what was applied goes back), off")
      ->capture_default_str()
      ->check(CLI::IsMember({"local", "global", "off"}));
  command->add_option("--momentum", o->momentum, "Momentum; 0 for none")->capture_default_str();
  command->add_flag("--nesterov", o->nesterov, "Nesterov momentum");
  command
      ->add_option("--residual-decay", o->residual_decay,
                   "What is left of the residual at each step; below 1 with --momentum 0 only")
      ->capture_default_str();
  add_steps(command, o->steps);
  add_warmup(command, o->warmup);
  command->add_option("--seed", o->seed, "Seed of the gradients")->capture_default_str();
  command->add_flag("--no-verify", o->no_verify,
                    "Skip the check of the last step against a plain implementation");
  add_output(command, o->as_json, o->quiet);
  command->callback([o] { run(*o); });
}

}  // namespace dgc::bench
