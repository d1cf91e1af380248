// What the benchmarks share: timings, gradients, shapes.
#pragma once

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "dgc/state.h"

namespace dgc::bench {

/// `dgc bench`, with the five below it.
void add_bench(CLI::App& app);
void add_bench_compress(CLI::App& bench);
void add_bench_exchange(CLI::App& bench);
void add_bench_hub(CLI::App& bench);
void add_bench_torch(CLI::App& bench);
void add_bench_wire(CLI::App& bench);

/// Milliseconds of repeated runs of one thing.
class Timings {
 public:
  template <typename Work>
  void measure(Work&& work) {
    const auto start = std::chrono::steady_clock::now();
    work();
    add(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
            .count());
  }
  void add(double milliseconds) { runs_.push_back(milliseconds); }
  double quantile(double q) const;
  double p50() const { return quantile(0.5); }
  nlohmann::json json() const;
  /// min, p50 and p99, as cells of a table.
  std::vector<std::string> cells() const;

 private:
  std::vector<double> runs_;
};

/// log2 of the number of ways to choose k of n: no index coding of uniform positions is shorter.
double entropy_bits(std::uint64_t n, std::uint64_t k);

/// The 54 weight tensors of ResNet-50, scaled to `elements` in all, with a gradient scale for each
/// (1/sqrt(fan-in), as with the usual initialisation).
struct Layer {
  TensorSpec spec;
  float scale;
};
std::vector<Layer> resnet50_layers(std::uint64_t elements);

/// Cheap fresh gradients: slices of a large table of samples at random places.
class GradientSource {
 public:
  /// kind: "gaussian" or "student" (t, 3 degrees of freedom).
  GradientSource(const std::string& kind, std::uint64_t seed);
  /// From raw little-endian float32, as recorded from a model.
  explicit GradientSource(std::vector<float> samples, std::uint64_t seed);
  void fill(std::span<float> out, float scale);

 private:
  std::vector<float> table_;
  std::mt19937_64 random_;
};

}  // namespace dgc::bench
