#include "session.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "dgc/error.h"

namespace dgc::python {
namespace {

std::vector<Gradient> gradients_of(const std::vector<Array>& arrays) {
  std::vector<Gradient> gradients;
  gradients.reserve(arrays.size());
  for (const Array& array : arrays) gradients.push_back({array.tensor, array.values()});
  return gradients;
}

std::vector<float> copy_of(std::span<const float> values) { return {values.begin(), values.end()}; }

[[noreturn]] void mismatch(std::size_t rank, std::string problem) {
  throw Error(ErrorCode::configuration_mismatch, "exchange", fmt::format("rank {}", rank),
              std::move(problem), "all ranks have to make the same calls, with the same options");
}

CheckedMessage checked_from(std::size_t rank, const Bytes& bytes) {
  try {
    return CheckedMessage(bytes.span());
  } catch (const Error& error) {
    throw Error(error.code(), error.operation(), fmt::format("rank {}", rank),
                fmt::format("{}: {}", error.subject(), error.problem()), error.hint());
  }
}

}  // namespace

Session::Session(std::vector<TensorSpec> tensors, std::uint32_t rank, std::uint32_t workers,
                 const CompressOptions& options)
    : state_(std::move(tensors), rank, workers, options.momentum != 0.0f),
      compressor_(state_, options) {}

double Session::norm(const std::vector<Array>& gradients) const {
  return compressor_.norm(gradients_of(gradients));
}

std::size_t Session::bound(const std::vector<std::size_t>& tensors) const {
  std::vector<Gradient> gradients;
  for (const std::size_t tensor : tensors) {
    // Only sizes matter; v has that of the gradient.
    gradients.push_back({tensor, {}});
    if (tensor < state_.tensors().size()) gradients.back().values = state_.residual(tensor);
  }
  return compressor_.bound(gradients);
}

std::size_t Session::compress(const std::vector<Array>& gradients,
                              const std::vector<std::size_t>& absent, const Bytes& out,
                              double scale, std::optional<double> norm) {
  for (const std::size_t tensor : absent) {
    kept_.push_back({tensor, copy_of(std::as_const(state_).velocity(tensor)),
                     copy_of(std::as_const(state_).residual(tensor))});
  }
  return compressor_.compress(gradients_of(gradients), out.span(), {.scale = scale, .norm = norm});
}

void Session::put_back(const Kept& kept) noexcept {
  std::copy(kept.velocity.begin(), kept.velocity.end(), state_.velocity(kept.tensor).begin());
  std::copy(kept.residual.begin(), kept.residual.end(), state_.residual(kept.tensor).begin());
}

void Session::commit(const std::vector<std::size_t>& frozen) {
  compressor_.commit();
  for (const Kept& kept : std::exchange(kept_, {})) {
    if (std::find(frozen.begin(), frozen.end(), kept.tensor) != frozen.end()) put_back(kept);
  }
}

void Session::restore() {
  compressor_.restore();
  for (const Kept& kept : std::exchange(kept_, {})) put_back(kept);
}

void check_header(const MessageHeader& header, std::size_t rank, std::uint64_t step,
                  std::uint32_t schema) {
  if (header.step != step) {
    mismatch(rank, fmt::format("sent step {}, this rank is at step {}", header.step, step));
  }
  if (header.schema != schema) mismatch(rank, "has another model or other options");
  if (header.sender != rank) mismatch(rank, fmt::format("says it is rank {}", header.sender));
}

void add_messages(const std::vector<Bytes>& messages, const std::vector<Array>& targets,
                  float alpha, std::uint64_t step, std::uint32_t schema) {
  std::size_t tensors = 0;
  for (const Array& target : targets) tensors = std::max(tensors, target.tensor + 1);
  std::vector<std::span<float>> by_tensor(tensors);
  for (const Array& target : targets) by_tensor[target.tensor] = target.values();
  // All are checked before any is added.
  std::vector<CheckedMessage> checked;
  for (std::size_t rank = 0; rank < messages.size(); ++rank) {
    const CheckedMessage& message = checked.emplace_back(checked_from(rank, messages[rank]));
    check_header(message.header(), rank, step, schema);
    for (const FrameInfo& frame : message.frames()) {
      if (frame.tensor < tensors && by_tensor[frame.tensor].size() == frame.elements) continue;
      mismatch(rank, fmt::format("sent tensor {} with {} elements", frame.tensor, frame.elements));
    }
  }
  for (const CheckedMessage& message : checked) decode_add(message, by_tensor, alpha);
}

}  // namespace dgc::python
