// Selected entries laid out densely, reduced at the owner of each part and gathered: for tensors
// that are sent whole, and for steps (warm-up) where positions would cost more than zeros. Sums run
// in the order of the ranks. With 16-bit transport the sender keeps the error of what it sends, and
// the owner of a part the error of the sum: nothing is lost, and the sum is the same everywhere.
// (The paper sends every step by all-gather, also at 75 % sparsity, where that moves more bytes.)
#include "exchange/dense.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "compress/internals.h"
#include "dgc/collectives.h"
#include "wire/values.h"

namespace dgc::exchange {
namespace {

/// Behind values stands their XXH3: XXH64, which messages have, is too slow for whole arrays.
constexpr std::size_t kChecksum = sizeof(XXH64_hash_t);

wire::ValueReader checked_values(ValueType type, const Received& received, std::size_t count,
                                 int sender) {
  const std::span<const std::byte> bytes = received.values.first(wire::value_bytes(type, count));
  XXH64_hash_t stored = 0;
  std::memcpy(&stored, received.values.data() + bytes.size(), kChecksum);
  const bool intact = XXH3_64bits(bytes.data(), bytes.size()) == stored;
  const wire::ValueReader reader(type, bytes.data(), count);
  if (intact && reader.validate() == ErrorCode::ok) return reader;
  throw Error(intact ? ErrorCode::nonfinite_value : ErrorCode::checksum_mismatch, "dense",
              fmt::format("rank {}", sender),
              intact ? "sent values that cannot be decoded" : "sent values with a wrong checksum",
              "nothing was applied");
}

}  // namespace

void check_finite_sum(const Context& context, std::size_t tensor, std::span<const float> sum,
                      std::size_t begin) {
  if (wire::all_finite(sum)) return;
  const auto bad =
      std::find_if_not(sum.begin(), sum.end(), [](float x) { return std::isfinite(x); });
  throw Error(
      ErrorCode::nonfinite_value, "exchange", context.state.tensors()[tensor].name,
      fmt::format("the sum over all ranks is {} at index {}, step {}", *bad,
                  begin + static_cast<std::size_t>(bad - sum.begin()), context.state.step()),
      "try a lower learning rate, or clipping");
}

std::uint64_t largest_part(const Context& context, std::uint64_t elements) {
  return kChecksum + wire::value_bytes(context.options.dense_transport,
                                       part_of(elements, context.group.size(), 0).size());
}

DenseParts::DenseParts(Context& context, std::span<const Gradient> gradients)
    : context_(context), gradients_(gradients), type_(context.options.dense_transport) {
  for (const Gradient& gradient : gradients) total_ += gradient.values.size();
}

std::size_t DenseParts::bytes() const { return wire::value_bytes(type_, total_); }

std::span<float> DenseParts::part(std::vector<float>& of, int rank) const {
  const Range range = part_of(total_, context_.group.size(), rank);
  return of.empty() ? std::span<float>() : std::span(of).subspan(range.begin, range.size());
}

std::size_t DenseParts::part_bytes(int rank) const {
  return kChecksum + wire::value_bytes(type_, part_of(total_, context_.group.size(), rank).size());
}

std::vector<std::size_t> DenseParts::sizes_to_me() const {
  if (gradients_.empty()) return {};
  return std::vector<std::size_t>(static_cast<std::size_t>(context_.group.size()),
                                  part_bytes(context_.group.rank()));
}

std::vector<std::size_t> DenseParts::sizes_from_each() const {
  std::vector<std::size_t> sizes;
  for (int r = 0; r < context_.group.size(); ++r) sizes.push_back(part_bytes(r));
  return sizes;
}

/// Adds what the values lose on the way to `errors`, which are empty for fp32.
void DenseParts::append(std::vector<std::byte>& parcel, std::span<const float> values,
                        std::span<float> errors) const {
  const std::size_t before = parcel.size();
  if (type_ == ValueType::fp32) {
    const auto bytes = std::as_bytes(values);
    parcel.insert(parcel.end(), bytes.begin(), bytes.end());
  } else {
    parcel.resize(before + wire::value_bytes(type_, values.size()));
    std::vector<float> decoded(values.size());
    wire::encode_values(type_, values, parcel.data() + before, decoded.data());
    for (std::size_t i = 0; i < values.size(); ++i) errors[i] += values[i] - decoded[i];
  }
  const XXH64_hash_t hash = XXH3_64bits(parcel.data() + before, parcel.size() - before);
  const auto checksum = std::as_bytes(std::span(&hash, 1));
  parcel.insert(parcel.end(), checksum.begin(), checksum.end());
}

Outbox DenseParts::lay_out(const Compressor::Call& call, std::span<const std::byte> message) {
  values_.resize(total_);
  compress::Internals::lay_out(context_.compressor, gradients_, values_, type_, call);
  if (type_ != ValueType::fp32) errors_.assign(total_, 0.0f);
  Outbox outbox;
  for (int r = 0; r < context_.group.size(); ++r) {
    std::vector<std::byte>& parcel = outbox.emplace_back();
    parcel.reserve(message.size() + part_bytes(r));
    parcel.assign(message.begin(), message.end());
    append(parcel, part(values_, r), part(errors_, r));
  }
  return outbox;
}

std::vector<std::byte> DenseParts::reduce(std::span<const Received> all,
                                          std::vector<std::byte> message) {
  const int me = context_.group.rank();
  const std::span<float> sum = part(values_, me);
  std::vector<wire::ValueReader> readers;
  for (std::size_t r = 0; r < all.size(); ++r) {
    readers.push_back(checked_values(type_, all[r], sum.size(), static_cast<int>(r)));
  }
  float theirs[wire::kBlock];
  for (std::size_t b = 0; b < wire::blocks_of(sum.size()); ++b) {
    float* const here = sum.data() + b * wire::kBlock;
    // The first is copied and not added to zero, or -0 would become 0.
    const std::size_t count = readers[0].decode_block(b, here);
    for (std::size_t r = 1; r < readers.size(); ++r) {
      readers[r].decode_block(b, theirs);
      for (std::size_t i = 0; i < count; ++i) here[i] += theirs[i];
    }
  }
  // By tensor, so that an error has a name.
  const Range mine = part_of(total_, context_.group.size(), me);
  std::size_t begin = 0;
  for (const Gradient& gradient : gradients_) {
    const std::size_t end = begin + gradient.values.size();
    const std::size_t from = std::max(begin, mine.begin);
    const std::size_t to = std::min(end, mine.end);
    if (from < to) {
      check_finite_sum(context_, gradient.tensor, sum.subspan(from - mine.begin, to - from),
                       from - begin);
    }
    begin = end;
  }
  message.reserve(message.size() + part_bytes(me));
  append(message, sum, part(errors_, me));
  return message;
}

void DenseParts::gather(std::span<const Received> all, Contents& contents) {
  for (int r = 0; r < context_.group.size(); ++r) {
    const std::span<float> sums = part(values_, r);
    const Received& received = all[static_cast<std::size_t>(r)];
    const wire::ValueReader reader = checked_values(type_, received, sums.size(), r);
    for (std::size_t b = 0; b < wire::blocks_of(sums.size()); ++b) {
      reader.decode_block(b, sums.data() + b * wire::kBlock);
    }
  }
  for (const Gradient& gradient : gradients_) contents.dense_tensors.push_back(gradient.tensor);
  contents.dense_sum = std::move(values_);
  contents.dense_errors = std::move(errors_);
}

}  // namespace dgc::exchange
