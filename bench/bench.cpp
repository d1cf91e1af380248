#include "bench/bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace dgc::bench {

double Timings::quantile(double q) const {
  if (runs_.empty()) return 0.0;
  std::vector<double> sorted = runs_;
  std::sort(sorted.begin(), sorted.end());
  const auto at =
      static_cast<std::size_t>(std::llround(q * static_cast<double>(sorted.size() - 1)));
  return sorted[at];
}

nlohmann::json Timings::json() const {
  return {{"min_ms", quantile(0.0)},
          {"p50_ms", p50()},
          {"p99_ms", quantile(0.99)},
          {"runs", runs_.size()}};
}

std::vector<std::string> Timings::cells() const {
  std::vector<std::string> cells;
  for (const double q : {0.0, 0.5, 0.99}) cells.push_back(fmt::format("{:.3f}", quantile(q)));
  return cells;
}

double entropy_bits(std::uint64_t n, std::uint64_t k) {
  const auto log_factorial = [](std::uint64_t x) {
    return std::lgamma(static_cast<double>(x) + 1.0);
  };
  return (log_factorial(n) - log_factorial(k) - log_factorial(n - k)) / std::log(2.0);
}

std::vector<Layer> resnet50_layers(std::uint64_t elements) {
  struct Weight {
    std::string name;
    std::int64_t out;
    std::int64_t fan_in;
  };
  std::vector<Weight> weights = {{"conv1.weight", 64, std::int64_t{3} * 7 * 7}};
  std::int64_t in = 64;
  const std::int64_t blocks[] = {3, 4, 6, 3};
  for (int stage = 0; stage < 4; ++stage) {
    const std::int64_t width = std::int64_t{64} << stage;
    for (std::int64_t block = 0; block < blocks[stage]; ++block) {
      const std::string prefix = fmt::format("layer{}.{}.", stage + 1, block);
      weights.push_back({prefix + "conv1.weight", width, in});
      weights.push_back({prefix + "conv2.weight", width, width * 9});
      weights.push_back({prefix + "conv3.weight", width * 4, width});
      if (block == 0) weights.push_back({prefix + "downsample.0.weight", width * 4, in});
      in = width * 4;
    }
  }
  weights.push_back({"fc.weight", 1000, 2048});

  std::int64_t total = 0;
  for (const Weight& w : weights) total += w.out * w.fan_in;
  std::vector<Layer> layers;
  std::uint64_t used = 0;
  std::int64_t seen = 0;
  for (const Weight& w : weights) {
    // Cumulative rounding, so that the sizes add up to `elements` exactly.
    seen += w.out * w.fan_in;
    const double share = static_cast<double>(seen) / static_cast<double>(total);
    const auto end =
        static_cast<std::uint64_t>(std::llround(static_cast<double>(elements) * share));
    layers.push_back({{w.name, {static_cast<std::int64_t>(end - used)}, false},
                      1.0f / std::sqrt(static_cast<float>(w.fan_in))});
    used = end;
  }
  return layers;
}

GradientSource::GradientSource(const std::string& kind, std::uint64_t seed)
    : table_(std::size_t{1} << 22), random_(seed) {
  if (kind == "gaussian") {
    std::normal_distribution<float> sample;
    for (float& x : table_) x = sample(random_);
  } else {
    std::student_t_distribution<float> sample(3.0f);
    for (float& x : table_) x = sample(random_);
  }
}

GradientSource::GradientSource(std::vector<float> samples, std::uint64_t seed)
    : table_(std::move(samples)), random_(seed) {}

void GradientSource::fill(std::span<float> out, float scale) {
  // Slices of 1024, with a random sign, at places that differ from step to step: entries of a
  // tensor stay independent enough that the selection moves about as it does in training.
  const std::size_t slice = std::min<std::size_t>(1024, table_.size());
  for (std::size_t begin = 0; begin < out.size(); begin += slice) {
    const std::uint64_t draw = random_();
    const float factor = (draw >> 63) != 0 ? -scale : scale;
    const float* source = table_.data() + (draw >> 1) % (table_.size() - slice + 1);
    const std::size_t count = std::min(slice, out.size() - begin);
    for (std::size_t i = 0; i < count; ++i) out[begin + i] = source[i] * factor;
  }
}

void add_bench(CLI::App& app) {
  auto* bench = app.add_subcommand("bench", "Measure speed and size on this machine");
  bench->footer(
      "Example:\n  dgc bench compress --threads 1,2\n  dgc bench wire --json\n"
      "  dgc bench exchange --workers 8\n  dgc bench hub --members 32,1000\n  dgc bench torch "
      "--batch 4");
  bench->require_subcommand(1);
  add_bench_compress(*bench);
  add_bench_exchange(*bench);
  add_bench_hub(*bench);
  add_bench_torch(*bench);
  add_bench_wire(*bench);
}

}  // namespace dgc::bench
