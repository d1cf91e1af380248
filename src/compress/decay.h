// Momentum that needs no exchange: that of weight decay, and that of sparse sums where momentum
// correction is off.
#pragma once

#include <span>

namespace dgc::sgd {

struct Decay {
  float weight_decay;
  float lr;
  float momentum;
  bool nesterov;
};

/// w -= lr · (the part of a momentum step that comes from weight_decay · w). `buffer` is the
/// momentum of that part, as long as w, or empty where momentum is 0.
void apply_decay(const Decay& decay, std::span<float> w, std::span<float> buffer) noexcept;

/// w -= lr · (a momentum step on sum + weight_decay · w): what torch::optim::SGD does. `buffer` is
/// the momentum, as long as w.
void apply_late_momentum(const Decay& decay, std::span<const float> sum, std::span<float> w,
                         std::span<float> buffer) noexcept;

}  // namespace dgc::sgd
