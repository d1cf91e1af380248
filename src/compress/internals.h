// What the exchange asks of a Compressor beyond its public interface.
#pragma once

#include <span>

#include "dgc/compressor.h"

namespace dgc::compress {

struct Internals {
  /// As compress(), without a message: the selected values as they are, zeros elsewhere, end to end
  /// in `values`, for transports that move whole arrays. Whatever such a transport rounds, the
  /// caller adds to the residual again; `transport` is how values will travel, for the statistics.
  static void lay_out(Compressor& compressor, std::span<const Gradient> gradients,
                      std::span<float> values, ValueType transport, const Compressor::Call& call);

  /// Whether the gradient of a tensor has entered u and v since the last commit, also if the step
  /// was restored.
  static bool accumulated(const Compressor& compressor, std::size_t tensor) noexcept;
};

}  // namespace dgc::compress
