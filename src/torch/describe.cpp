#include "torch/describe.h"

namespace dgc::sgd {

void describe_step(const Collected& collected, const Exchange& exchange, std::uint64_t elements,
                   int workers, StepStats& stats) {
  double share = 0.0;  // what this worker compresses: all, or its share of a host's
  double sparse = 0.0;
  double sparse_sent = 0.0;
  bool compressed = false;
  const std::span<const TensorStats> by_tensor = exchange.stats();
  for (std::size_t t = 0; t < by_tensor.size(); ++t) {
    const TensorSpec& spec = exchange.state().tensors()[t];
    share += static_cast<double>(spec.elements());
    if (collected.skipped || !collected.present[t]) continue;
    compressed = true;
    const TensorStats& tensor = by_tensor[t];
    stats.entries += tensor.sent;
    if (spec.dense) continue;
    sparse += static_cast<double>(spec.elements());
    sparse_sent += static_cast<double>(tensor.sent);
    stats.threshold += static_cast<double>(tensor.threshold) * static_cast<double>(tensor.sent);
  }
  stats.threshold = sparse_sent > 0.0 ? stats.threshold / sparse_sent : 0.0;
  stats.achieved_ratio = sparse > 0.0 ? sparse_sent / sparse : 0.0;
  stats.message_bytes = collected.message_bytes;
  stats.compress = collected.seconds.compress;
  stats.encode = collected.seconds.encode;
  stats.exchange = collected.seconds.exchange;
  stats.bytes_up = collected.moved.bytes_sent;
  stats.bytes_down = collected.moved.bytes_received;
  if (stats.message_bytes > 0) {
    stats.message_ratio = 4.0 * share / static_cast<double>(stats.message_bytes);
  }
  if (stats.bytes_down > 0 && !collected.skipped) {
    const double n = workers;
    stats.traffic_ratio =
        8.0 * static_cast<double>(elements) * (n - 1.0) / n / static_cast<double>(stats.bytes_down);
  }
  if (compressed) stats.clip_factor = exchange.clip_factor();
  stats.gradient_norm = collected.gradient_norm;
  stats.residual_norm = collected.residual_norm;
}

}  // namespace dgc::sgd
