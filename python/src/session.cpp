#include "session.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "dgc/error.h"
#include "exchange/senders.h"

namespace dgc::python {
namespace {

std::vector<Gradient> gradients_of(const std::vector<Array>& arrays) {
  std::vector<Gradient> gradients;
  gradients.reserve(arrays.size());
  for (const Array& array : arrays) gradients.push_back({array.tensor, array.values()});
  return gradients;
}

/// By tensor; empty where there is none.
std::vector<std::span<float>> spans_of(const std::vector<Array>& arrays) {
  std::size_t tensors = 0;
  for (const Array& array : arrays) tensors = std::max(tensors, array.tensor + 1);
  std::vector<std::span<float>> by_tensor(tensors);
  for (const Array& array : arrays) by_tensor[array.tensor] = array.values();
  return by_tensor;
}

std::vector<float> copy_of(std::span<const float> values) { return {values.begin(), values.end()}; }

}  // namespace

Session::Session(std::vector<TensorSpec> tensors, std::uint32_t rank, std::uint32_t workers,
                 const CompressOptions& options)
    : state_(std::move(tensors), rank, workers, options.needs_velocity()),
      compressor_(state_, options) {}

double Session::norm(const std::vector<Array>& gradients) const {
  return compressor_.norm(gradients_of(gradients));
}

void Session::keep_absent(const std::vector<Array>& gradients, const Notice& notice) {
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (notice.present.at(i)) continue;
    const std::size_t tensor = gradients[i].tensor;
    kept_.push_back({tensor, copy_of(std::as_const(state_).velocity(tensor)),
                     copy_of(std::as_const(state_).residual(tensor))});
  }
}

std::size_t Session::compress(const std::vector<Array>& gradients, const Notice& notice,
                              const Bytes& out, double scale, std::optional<double> norm) {
  keep_absent(gradients, notice);
  return compressor_.compress(gradients_of(gradients), out.span(),
                              {.scale = scale, .norm = norm, .notice = &notice});
}

std::pair<std::uint64_t, std::uint64_t> Session::owner_bounds(
    const std::vector<std::size_t>& tensors, std::uint64_t step) const {
  const auto frames = exchange::Owners(state_, options(), step, tensors).bounds();
  return {exchange::parcel_bound(tensors.size(), frames.to),
          exchange::parcel_bound(0, frames.from)};
}

std::vector<std::vector<std::byte>> Session::compress_for_owners(
    const std::vector<Array>& gradients, const Notice& notice, double scale,
    std::optional<double> norm) {
  keep_absent(gradients, notice);
  const std::vector<Gradient> given = gradients_of(gradients);
  std::vector<std::byte> whole(compressor_.bound(given));
  whole.resize(compressor_.compress(given, whole, {.scale = scale, .norm = norm}));
  std::vector<std::size_t> tensors;
  for (const Gradient& gradient : given) tensors.push_back(gradient.tensor);
  return exchange::Owners(state_, options(), state_.step(), tensors)
      .slices_of(CheckedMessage(whole), notice, changes_);
}

std::vector<std::byte> Session::choose(const std::vector<std::size_t>& tensors,
                                       const Parcels& slices, const Notice& notice) {
  std::vector<const CheckedMessage*> messages;
  for (std::size_t rank = 0; rank < slices.size(); ++rank) messages.push_back(&slices.of(rank));
  return exchange::Owners(state_, options(), state_.step(), tensors)
      .choose(messages, notice, changes_);
}

void Session::feed_back(const Parcels& parcels) {
  const float share = options().feedback() / static_cast<float>(state_.workers());
  if (share == 0.0f) return;
  for (std::size_t rank = 0; rank < parcels.size(); ++rank) {
    for (const Entries& entries : decode_entries(parcels.of(rank), kMaxElements)) {
      for (std::size_t i = 0; i < entries.values.size(); ++i) {
        changes_.errors.push_back({entries.tensor, entries.indices[i], share * entries.values[i]});
      }
    }
  }
}

void Session::put_back(const Kept& kept) noexcept {
  std::copy(kept.velocity.begin(), kept.velocity.end(), state_.velocity(kept.tensor).begin());
  std::copy(kept.residual.begin(), kept.residual.end(), state_.residual(kept.tensor).begin());
}

void Session::commit(const std::vector<std::size_t>& frozen) {
  std::exchange(changes_, {}).apply(state_, state_.has_velocity() && options().masking);
  compressor_.commit();
  for (const Kept& kept : std::exchange(kept_, {})) {
    if (std::find(frozen.begin(), frozen.end(), kept.tensor) != frozen.end()) put_back(kept);
  }
}

void Session::restore() {
  changes_ = {};
  compressor_.restore();
  for (const Kept& kept : std::exchange(kept_, {})) put_back(kept);
}

Parcels::Parcels(const std::vector<Bytes>& messages, const Notice& mine, std::uint64_t step,
                 std::uint32_t schema, const std::vector<exchange::Expected>& tensors) {
  const exchange::Rules rules{
      .phase = "exchange",
      .step = step,
      .schema = schema,
      .notice = mine,
      .tensors = tensors,
      .hint = "nothing was applied; all ranks have to make the same calls, with the same options"};
  const auto name = [](std::size_t rank) { return fmt::format("rank {}", rank); };
  for (std::size_t rank = 0; rank < messages.size(); ++rank) {
    messages_.push_back(exchange::checked_message(rules, name(rank), messages[rank].span()));
  }
  // First of all, so that all ranks raise the same, whatever else does not fit.
  for (std::size_t rank = 0; rank < messages_.size(); ++rank) {
    const std::optional<Notice>& notice = messages_[rank].header().notice;
    if (!notice || !notice->failure) continue;
    throw Error(notice->failure->code, "exchange", name(rank), "gave up: " + notice->failure->text);
  }
  std::vector<const Notice*> notices;
  for (std::size_t rank = 0; rank < messages_.size(); ++rank) {
    exchange::check_message(rules, name(rank), rank, messages_[rank]);
    notices.push_back(&*messages_[rank].header().notice);
  }
  merged_ = exchange::merged(notices, step);
}

void Parcels::add_mean_of_senders(const std::vector<Array>& targets, float alpha,
                                  const std::vector<bool>& whole) const {
  std::vector<const CheckedMessage*> messages;
  for (const CheckedMessage& message : messages_) messages.push_back(&message);
  const auto by_tensor = spans_of(targets);
  if (whole.size() < by_tensor.size()) {
    throw Error(ErrorCode::shape_mismatch, "decode", "whole",
                fmt::format("says {} tensors of {}", whole.size(), by_tensor.size()));
  }
  exchange::add_mean_of_senders(messages, by_tensor, std::vector<float>(by_tensor.size(), alpha),
                                whole);
}

void Parcels::add_to(const std::vector<Array>& targets, float alpha) const {
  const auto by_tensor = spans_of(targets);
  for (const CheckedMessage& message : messages_) decode_add(message, by_tensor, alpha);
}

}  // namespace dgc::python
