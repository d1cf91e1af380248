// Selected entries laid out densely, reduced at the owner of each part and gathered: for tensors
// that are sent whole, and for steps (warm-up) where positions would cost more than zeros. Sums run
// in the order of the ranks. With 16-bit transport the sender keeps the error of what it sends, and
// the owner of a part the error of the sum: nothing is lost, and the sum is the same everywhere.
// (The paper sends every step by all-gather, also at 75 % sparsity, where that moves more bytes.)
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "dgc/collectives.h"
#include "exchange/context.h"
#include "wire/values.h"

namespace dgc::exchange {
namespace {

/// The bytes of `values` as `type`; adds what they lose to `errors`.
std::vector<std::byte> rounded(ValueType type, std::span<const float> values,
                               std::span<float> errors) {
  std::vector<std::byte> bytes(wire::value_bytes(type, values.size()));
  std::vector<float> decoded(values.size());
  wire::encode_values(type, values, bytes.data(), decoded.data());
  for (std::size_t i = 0; i < values.size(); ++i) errors[i] += values[i] - decoded[i];
  return bytes;
}

void decode_into(ValueType type, std::span<const std::byte> bytes, std::span<float> values,
                 int sender) {
  const wire::ValueReader reader(type, bytes.data(), values.size());
  if (bytes.size() != wire::value_bytes(type, values.size()) ||
      reader.validate() != ErrorCode::ok) {
    throw Error(ErrorCode::nonfinite_value, "dense", "rank " + std::to_string(sender),
                "sent values that cannot be decoded");
  }
  float block[wire::kBlock];
  for (std::size_t b = 0; b < wire::blocks_of(values.size()); ++b) {
    const std::size_t count = reader.decode_block(b, block);
    std::copy_n(block, count, values.begin() + static_cast<std::ptrdiff_t>(b * wire::kBlock));
  }
}

/// Sums of finite values may be too large all the same, and nothing on the way guards these. Every
/// rank has the same and throws the same.
void check_sums(const Context& context, std::span<const Gradient> gradients,
                std::span<const float> sums) {
  const auto bytes = std::as_bytes(sums);
  if (wire::ValueReader(ValueType::fp32, bytes.data(), sums.size()).validate() == ErrorCode::ok)
    return;
  for (const Gradient& gradient : gradients) {
    for (std::size_t i = 0; i < gradient.values.size(); ++i) {
      if (std::isfinite(sums[i])) continue;
      throw Error(ErrorCode::nonfinite_value, "dense", context.model[gradient.tensor].name,
                  fmt::format("the sum over all ranks is {} at index {}, step {}", sums[i], i,
                              context.state.step()),
                  "try a lower learning rate, or clipping");
    }
    sums = sums.subspan(gradient.values.size());
  }
}

}  // namespace

void run_dense(Context& context, std::span<const Gradient> gradients, const Compressor::Call& call,
               Bucket::Impl& bucket) {
  const ValueType type = context.options.dense_transport;
  Group& group = context.group;
  std::size_t total = 0;
  for (const Gradient& gradient : gradients) {
    total += gradient.values.size();
    bucket.dense_tensors.push_back(gradient.tensor);
  }
  std::vector<float> values(total);
  context.compressor.lay_out(gradients, values, type, call);
  bucket.message_bytes += wire::value_bytes(type, total);

  const PhaseMeter meter(group, bucket, "dense");
  if (type == ValueType::fp32) {
    all_reduce(group, values);
    check_sums(context, gradients, values);
    bucket.dense_sum = std::move(values);
    return;
  }

  bucket.dense_errors.assign(total, 0.0f);
  const auto part = [&](std::vector<float>& of, int r) {
    const Range range = part_of(total, group.size(), r);
    return std::span(of).subspan(range.begin, range.size());
  };
  std::vector<std::vector<std::byte>> parts;
  for (int r = 0; r < group.size(); ++r) {
    parts.push_back(rounded(type, part(values, r), part(bucket.dense_errors, r)));
  }
  std::vector<std::span<const std::byte>> outgoing(parts.begin(), parts.end());
  const auto ranks = static_cast<std::size_t>(group.size());
  const std::size_t most = wire::value_bytes(type, (total + ranks - 1) / ranks);
  const auto slices = all_to_all(group, outgoing, most);

  std::vector<float> sum(part(values, group.rank()).size(), 0.0f);
  std::vector<float> theirs(sum.size());
  for (int r = 0; r < group.size(); ++r) {
    decode_into(type, slices[static_cast<std::size_t>(r)], theirs, r);
    // The first is copied and not added to zero, or -0 would become 0.
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = r == 0 ? theirs[i] : sum[i] + theirs[i];
  }
  if (!std::all_of(sum.begin(), sum.end(), [](float x) { return std::isfinite(x); })) {
    throw Error(ErrorCode::nonfinite_value, "dense", fmt::format("rank {}", group.rank()),
                fmt::format("a sum over all ranks is not finite in step {}", context.state.step()),
                "try a lower learning rate, or clipping");
  }
  const std::vector<std::byte> mine = rounded(type, sum, part(bucket.dense_errors, group.rank()));
  const auto sums = all_gather(group, mine, most);
  for (int r = 0; r < group.size(); ++r)
    decode_into(type, sums[static_cast<std::size_t>(r)], part(values, r), r);
  bucket.dense_sum = std::move(values);
}

}  // namespace dgc::exchange
