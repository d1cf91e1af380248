// Weight decay beside the exchange: exact SGD semantics by linearity.
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

}  // namespace dgc::sgd
