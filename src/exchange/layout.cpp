// Predictions are for choosing and planning, so that they may be rough; they depend on sizes alone,
// so that every rank predicts, and chooses, the same.
#include "exchange/layout.h"

#include <algorithm>
#include <cmath>

namespace dgc::exchange {
namespace {

double bits_of(ValueType type) noexcept {
  switch (type) {
    case ValueType::fp32:
      return 32.0;
    case ValueType::fp16:
    case ValueType::bf16:
      return 16.0;
    case ValueType::int8:
      return 8.0;
    case ValueType::sign:
      return 1.0;
    case ValueType::table2:
      return 2.125;  // with the table
    case ValueType::table4:
      return 4.5;
  }
  return 32.0;
}

}  // namespace

Load load_of(const TensorSpec& spec, const CompressOptions& options, std::uint64_t step) {
  const std::uint64_t elements = spec.elements();
  if (spec.dense) return {elements, elements};
  const double ratio = options.schedule.ratio_at(static_cast<std::int64_t>(step));
  return {elements, entries_at(ratio, elements)};
}

ValueType values_of(const CompressOptions& options, const Load& load) noexcept {
  return load.entries == load.elements ? options.dense_values : options.values;
}

std::vector<std::vector<std::uint64_t>> owner_cuts(const std::vector<Load>& tensors, int owners) {
  double total = 0.0;
  for (const Load& tensor : tensors) total += static_cast<double>(tensor.entries);
  std::vector<std::vector<std::uint64_t>> cuts;
  double before = 0.0;
  for (const Load& tensor : tensors) {
    auto& cut = cuts.emplace_back(static_cast<std::size_t>(owners) + 1, 0);
    const auto entries = static_cast<double>(tensor.entries);
    for (int o = 1; o < owners; ++o) {
      // Where in this tensor the load of the first o owners ends.
      const double wanted = total * o / owners - before;
      const double share = entries > 0.0 ? std::clamp(wanted / entries, 0.0, 1.0) : 0.0;
      cut[static_cast<std::size_t>(o)] =
          static_cast<std::uint64_t>(share * static_cast<double>(tensor.elements));
    }
    cut.back() = tensor.elements;
    before += entries;
  }
  return cuts;
}

std::uint64_t owner_most(const Load& tensor, std::uint64_t elements) noexcept {
  if (tensor.entries == tensor.elements) return elements;
  // Room for messages is made before they come. What an owner may not send waits in its residual.
  constexpr double kShares = 4.0;
  const double part = static_cast<double>(elements) / static_cast<double>(tensor.elements);
  const double most = std::ceil(kShares * part * static_cast<double>(tensor.entries));
  return std::min({static_cast<std::uint64_t>(most), tensor.entries, elements});
}

std::uint64_t owner_entries(const Load& tensor, const Inflow& inflow,
                            std::uint64_t rounding) noexcept {
  const std::uint64_t most = owner_most(tensor, inflow.elements);
  if (tensor.entries == tensor.elements) return most;
  const auto workers = static_cast<std::uint64_t>(inflow.workers);
  return std::min(most, (inflow.received + rounding) / workers);
}

double allgather_bytes(const Load& tensor, ValueType values, int workers) noexcept {
  const auto n = static_cast<double>(tensor.elements);
  const auto k = static_cast<double>(tensor.entries);
  if (k == 0.0) return 0.0;
  const double value_bits = bits_of(values);
  // Rice codes cost about 1.6 bits above log2 of the mean gap; a bitmap or a dense frame may cost
  // less.
  const double sparse = k * (value_bits + std::log2(std::max(1.0, n / k)) + 1.6);
  const double frame = std::min({sparse, n + k * value_bits, n * value_bits}) / 8.0 + 12.0;
  return frame * (workers - 1);
}

double dense_bytes(const Load& tensor, ValueType transport, int workers) noexcept {
  const auto n = static_cast<double>(tensor.elements);
  return 2.0 * n * bits_of(transport) / 8.0 * (workers - 1) / workers;
}

double received_bytes(Algorithm algorithm, double message, double dense, int workers) noexcept {
  constexpr double kChecksum = 8.0;  // of dense values
  const double n = workers;
  if (algorithm == Algorithm::owner) {
    return 2.0 * (n - 1) * ((message - kEmptyMessage) / n + kEmptyMessage + kLengthBytes);
  }
  double bytes = (n - 1) * ((message > 0.0 ? message : kEmptyMessage) + kLengthBytes);
  if (dense > 0.0) {
    bytes += (n - 1) * (8.0 * dense / n + 2.0 * kChecksum + kEmptyMessage + kLengthBytes);
  }
  return bytes;
}

double sent_messages(Algorithm algorithm, bool message, bool dense, int workers) noexcept {
  const double n = workers;
  if (algorithm == Algorithm::owner) return 2.0 * (n - 1);
  if (!message && !dense) return 0.0;
  // What is dense goes with the messages, and its sums come back.
  return dense ? 2.0 * (n - 1) : n - 1;
}

}  // namespace dgc::exchange
