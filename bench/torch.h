// dgc bench torch: a training step of libtorch with and without dgc.
#pragma once

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

namespace dgc::bench {

struct TorchOptions {
  std::string model = "resnet50";
  int batch = 0;  ///< of each worker; on the command line 0 is a small one, by model
  int image = 224;
  double ratio = 0.001;
  std::string values = "fp16";
  std::string algorithm = "auto";
  std::vector<int> workers = {1, 2};
  int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  int threads = 1;
  bool no_overlap = false;
  std::string launch = "threads";  ///< or processes
  int block = 1;                   ///< steps that are timed as one
  int steps = 5;
  int warmup = 1;
  std::int64_t seed = 1;
  bool as_json = false;
  bool quiet = false;
};

/// Measures with so many workers, as threads of this process.
nlohmann::json measure_steps(const TorchOptions& options, int workers);

/// Measures as one of the workers that this process was started for. The results on rank 0, null on
/// others.
nlohmann::json measure_steps_as_rank(const TorchOptions& options);

}  // namespace dgc::bench
