// Norms for gauges: cheap enough for every step.
#pragma once

#include <cstdint>
#include <span>

namespace dgc::exchange {

/// An estimate of the sum of squares: exact up to 64 Ki elements, beyond that from one cache line
/// in 64, at places that move with `seed`. Its error is that of a sample of n/64.
double sampled_squares(std::span<const float> values, std::uint64_t seed) noexcept;

}  // namespace dgc::exchange
