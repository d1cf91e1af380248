// Weight decay must not enter v: it would compete with gradients for the 0.1 % that is sent, and be
// applied late. Momentum SGD is linear in the gradient, so that the momentum of lambda·w can be
// kept apart: it depends on w alone, which is the same on every worker, and needs no exchange. (The
// paper has no word on weight decay.)
//
// Late momentum is gradient dropping (the paper's eq. 5, its baseline): momentum on the sparse sum,
// decay included, as torch::optim::SGD has it.
#include "compress/decay.h"

#include <cstddef>

namespace dgc::sgd {

void apply_decay(const Decay& decay, std::span<float> w, std::span<float> buffer) noexcept {
  const auto [lambda, lr, m, nesterov] = decay;
  float* const d = buffer.data();
  if (buffer.empty()) {
    for (float& x : w) x -= lr * (lambda * x);
  } else if (nesterov) {
    // The compressor's form of it: d is m times the usual buffer.
    for (std::size_t i = 0; i < w.size(); ++i) {
      const float g = lambda * w[i];
      d[i] = m * (d[i] + g);
      w[i] -= lr * (d[i] + g);
    }
  } else {
    for (std::size_t i = 0; i < w.size(); ++i) {
      d[i] = m * d[i] + lambda * w[i];
      w[i] -= lr * d[i];
    }
  }
}

void apply_late_momentum(const Decay& decay, std::span<const float> sum, std::span<float> w,
                         std::span<float> buffer) noexcept {
  const auto [lambda, lr, m, nesterov] = decay;
  float* const d = buffer.data();
  for (std::size_t i = 0; i < w.size(); ++i) {
    const float g = sum[i] + lambda * w[i];
    d[i] = m * d[i] + g;
    w[i] -= lr * (nesterov ? g + m * d[i] : d[i]);
  }
}

}  // namespace dgc::sgd
