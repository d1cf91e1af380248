// Selected entries laid out densely, reduced at the owner of each part and gathered: for tensors
// that are sent whole, and for steps (warm-up) where positions would cost more than zeros. Sums run
// in the order of the ranks. With 16-bit transport the sender keeps the error of what it sends, and
// the owner of a part the error of the sum: nothing is lost, and the sum is the same everywhere.
#include <algorithm>

#include "dgc/collectives.h"
#include "exchange/context.h"
#include "wire/values.h"

namespace dgc::exchange {
namespace {

/// What this worker selected, as arrays end to end.
std::vector<float> selected_entries(Context& context, std::span<const Gradient> gradients,
                                    const Compressor::Call& call,
                                    const std::vector<std::size_t>& begins, std::size_t total) {
  std::vector<std::byte> message(context.compressor.bound(gradients));
  message.resize(context.compressor.compress(gradients, message, call));
  std::vector<float> values(total, 0.0f);
  std::vector<std::span<float>> targets(context.state.tensors().size());
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    targets[gradients[i].tensor] = std::span(values).subspan(begins[i], gradients[i].values.size());
  }
  decode_add(message, targets);
  return values;
}

/// Rounds `values` to `type` in place and writes the bytes that say so.
std::vector<std::byte> rounded(ValueType type, std::span<float> values) {
  std::vector<std::byte> bytes(wire::value_bytes(type, values.size()));
  std::vector<float> decoded(values.size());
  wire::encode_values(type, values, bytes.data(), decoded.data());
  std::copy(decoded.begin(), decoded.end(), values.begin());
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

}  // namespace

void run_dense(Context& context, std::span<const Gradient> gradients, const Compressor::Call& call,
               Bucket::Impl& bucket) {
  const ValueType type = context.options.dense_transport;
  Group& group = context.group;
  std::vector<std::size_t> begins;
  std::size_t total = 0;
  for (const Gradient& gradient : gradients) {
    begins.push_back(total);
    total += gradient.values.size();
    bucket.dense_tensors.push_back(gradient.tensor);
  }
  std::vector<float> values = selected_entries(context, gradients, call, begins, total);
  bucket.message_bytes += wire::value_bytes(type, total);

  const PhaseMeter meter(group, bucket, "dense");
  if (type == ValueType::fp32) {
    all_reduce(group, values);
    bucket.dense_sum = std::move(values);
    return;
  }

  const auto keep_error = [&](std::size_t at, float error) {
    if (error == 0.0f) return;
    const auto next = std::upper_bound(begins.begin(), begins.end(), at);
    const auto i = static_cast<std::size_t>(next - begins.begin()) - 1;
    bucket.errors.push_back(
        {gradients[i].tensor, static_cast<std::uint32_t>(at - begins[i]), error});
  };
  const auto part = [&](int r) {
    const Range range = part_of(total, group.size(), r);
    return std::span(values).subspan(range.begin, range.size());
  };
  const std::size_t own_begin = part_of(total, group.size(), group.rank()).begin;
  const std::vector<float> exact = values;

  std::vector<std::vector<std::byte>> parts;
  for (int r = 0; r < group.size(); ++r) parts.push_back(rounded(type, part(r)));
  for (std::size_t i = 0; i < exact.size(); ++i) keep_error(i, exact[i] - values[i]);
  std::vector<std::span<const std::byte>> outgoing(parts.begin(), parts.end());
  const auto slices = all_to_all(group, outgoing);

  const std::span<float> own = part(group.rank());
  std::vector<float> sum(own.size(), 0.0f);
  std::vector<float> theirs(own.size());
  for (int r = 0; r < group.size(); ++r) {
    decode_into(type, slices[static_cast<std::size_t>(r)], theirs, r);
    // The first is copied and not added to zero, or -0 would become 0.
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = r == 0 ? theirs[i] : sum[i] + theirs[i];
  }
  const std::vector<float> exact_sum = sum;
  const std::vector<std::byte> mine = rounded(type, sum);
  for (std::size_t i = 0; i < exact_sum.size(); ++i)
    keep_error(own_begin + i, exact_sum[i] - sum[i]);
  const auto sums = all_gather(group, mine);
  for (int r = 0; r < group.size(); ++r)
    decode_into(type, sums[static_cast<std::size_t>(r)], part(r), r);
  bucket.dense_sum = std::move(values);
}

}  // namespace dgc::exchange
