// How large the messages of the paper's models are: table 3 of the paper, measured.
#pragma once

#include <cstdint>
#include <functional>

#include "models/catalogue.h"

namespace dgc::train {

/// Bytes that a worker emits in a step.
struct ModelSizes {
  std::uint64_t parameters = 0;
  std::uint64_t dense_parameters = 0;  ///< in tensors of one dimension, which are sent whole
  std::uint64_t entries = 0;           ///< selected from the others; those that are zero are not
  std::uint64_t dense_bytes = 0;       ///< 4 for each parameter
  std::uint64_t paper_bytes = 0;       ///< 16-bit runs and fp32; tensors of one dimension as fp32
  std::uint64_t rice_fp16_bytes = 0;   ///< `dgc train`'s own
  std::uint64_t quantised_bytes = 0;   ///< the same, tensors of one dimension as int8
  std::uint64_t best_bytes = 0;        ///< signs with a scale, everywhere
  /// As local steps send them: 1/64 of the entries with 2 bits, tensors of one dimension with 2
  /// bits.
  std::uint64_t local_bytes = 0;

  double ratio(std::uint64_t bytes) const {
    return static_cast<double>(dense_bytes) / static_cast<double>(bytes);
  }
  double bits_a_parameter(std::uint64_t bytes) const { return 32.0 / ratio(bytes); }
};

/// Trains `steps` steps on generated data at 99.9 % from the first, with the gradients of one
/// worker, and measures the message of the last. Every format has its own residuals, so that what
/// it rounds comes back; the parameters follow the paper's. `progress` is called after each step.
ModelSizes measure_sizes(const models::Model& model, int steps,
                         const std::function<void()>& progress);

}  // namespace dgc::train
