// One commit, with rate lr and messages M1 … Mn (factors f1 … fn):
//
//     w -= lr · (the part of the step that comes from weight decay)      compress/decay.h
//     w -= lr · share · (f1 · M1 + … + fn · Mn)                          in the order of the parts
//
// and where momentum is at the replicas, w -= lr · (a momentum step on that sum and the decay).
#include "hub/replica.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "compress/decay.h"
#include "dgc/error.h"

namespace dgc::hub {
namespace {

void take_floats(std::span<const std::byte> bytes, std::vector<float>& out, const char* what) {
  if (bytes.size() != out.size() * sizeof(float)) {
    throw Error(ErrorCode::state_mismatch, "hub", what,
                fmt::format("has {} bytes, not {}", bytes.size(), out.size() * sizeof(float)));
  }
  std::vector<float> values(out.size());
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  if (!std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); })) {
    throw Error(ErrorCode::nonfinite_value, "hub", what, "has a value that is not finite");
  }
  out = std::move(values);
}

/// An empty vector has no address to copy from.
std::span<const std::byte> bytes_of(const std::vector<float>& values) {
  return std::as_bytes(std::span(values));
}

}  // namespace

Replica::Replica(std::vector<TensorSpec> model, std::vector<TensorSpec> buffers, const Terms& terms)
    : model_(std::move(model)), buffer_specs_(std::move(buffers)), terms_(terms) {
  values_.resize(elements_of(model_));
  buffers_.resize(elements_of(buffer_specs_));
  const bool late = terms.momentum_correction == MomentumCorrection::off && terms.momentum > 0.0f;
  const bool decays = terms.weight_decay > 0.0f && terms.momentum > 0.0f;
  if (late || decays) momentum_.resize(values_.size());
  std::size_t at = 0;
  for (const TensorSpec& spec : model_) {
    by_tensor_.push_back(std::span(values_).subspan(at, spec.elements()));
    at += spec.elements();
  }
}

std::vector<std::span<float>> Replica::parameters() { return by_tensor_; }

void Replica::apply(const Commit& commit) {
  if (commit.round != round_ + 1) {
    throw Error(ErrorCode::wrong_order, "hub", fmt::format("commit {}", commit.round),
                fmt::format("comes after round {}", round_));
  }
  if (commit.parameters && *commit.parameters != hash()) {
    throw Error(ErrorCode::diverged, "hub", fmt::format("round {}", round_),
                "the parameters here are not those of the hub",
                "start again without the saved replica; if it comes back, report it");
  }
  const std::size_t expected = terms_.down == Down::forward ? commit.parts.size() : std::size_t{1};
  if (commit.messages.size() != expected) {
    throw Error(ErrorCode::bad_count, "hub", fmt::format("commit {}", commit.round),
                fmt::format("has {} messages, not {}", commit.messages.size(), expected));
  }
  std::vector<float> buffers = buffers_;
  if (!commit.buffers.empty()) take_floats(commit.buffers, buffers, "buffers of a commit");
  std::vector<CheckedMessage> messages;
  for (const Bytes& message : commit.messages) {
    messages.emplace_back(message);
    // Finds what decode_add would refuse, before anything has changed.
    for (const FrameInfo& frame : messages.back().frames()) {
      if (frame.tensor >= model_.size()) {
        throw Error(ErrorCode::unknown_tensor, "hub", fmt::format("tensor {}", frame.tensor),
                    "is not in the model");
      }
      if (frame.elements != model_[frame.tensor].elements()) {
        throw Error(ErrorCode::shape_mismatch, "hub", model_[frame.tensor].name,
                    "has another size in a message");
      }
    }
  }

  const sgd::Decay decay{.weight_decay = terms_.weight_decay,
                         .lr = commit.lr,
                         .momentum = terms_.momentum,
                         .nesterov = terms_.nesterov};
  const auto add = [&](std::span<const std::span<float>> targets, float alpha) {
    for (std::size_t i = 0; i < messages.size(); ++i) {
      const float factor = terms_.down == Down::forward ? commit.parts[i].factor : 1.0f;
      decode_add(messages[i], targets, alpha * factor);
    }
  };
  if (terms_.momentum_correction == MomentumCorrection::off && terms_.momentum > 0.0f) {
    std::vector<float> sum(values_.size());
    std::vector<std::span<float>> sums;
    std::size_t at = 0;
    for (const TensorSpec& spec : model_) {
      sums.push_back(std::span(sum).subspan(at, spec.elements()));
      at += spec.elements();
    }
    add(sums, commit.share);
    sgd::apply_late_momentum(decay, sum, values_, momentum_);
  } else {
    if (terms_.weight_decay > 0.0f) sgd::apply_decay(decay, values_, momentum_);
    add(by_tensor_, -(commit.lr * commit.share));
  }
  buffers_ = std::move(buffers);
  round_ = commit.round;
}

std::uint64_t Replica::hash() const {
  return XXH64(values_.data(), values_.size() * sizeof(float), round_);
}

Bytes Replica::snapshot(const nlohmann::json& more,
                        std::span<const std::span<const std::byte>> extra) const {
  const nlohmann::json head = {{"round", round_},
                               {"model", to_json(model_)},
                               {"buffers", to_json(buffer_specs_)},
                               {"terms", to_json(terms_)},
                               {"more", more}};
  std::vector<std::span<const std::byte>> blobs = {bytes_of(values_), bytes_of(momentum_),
                                                   bytes_of(buffers_)};
  blobs.insert(blobs.end(), extra.begin(), extra.end());
  return write_packet(head, blobs);
}

Packet Replica::load(std::span<const std::byte> snapshot) {
  Packet packet = read_packet(snapshot);
  const std::uint64_t round = whole_number(packet.head, "round");
  if (packet.head["model"] != to_json(model_) || packet.head["buffers"] != to_json(buffer_specs_)) {
    throw Error(ErrorCode::state_mismatch, "hub", "snapshot", "is of another model");
  }
  if (packet.head["terms"] != to_json(terms_)) {
    throw Error(ErrorCode::state_mismatch, "hub", "snapshot", "is of a run with other terms");
  }
  std::vector<float> values(values_.size());
  std::vector<float> momentum(momentum_.size());
  std::vector<float> buffers(buffers_.size());
  take_floats(packet.blob(0), values, "parameters of a snapshot");
  take_floats(packet.blob(1), momentum, "momentum of a snapshot");
  take_floats(packet.blob(2), buffers, "buffers of a snapshot");
  std::copy(values.begin(), values.end(), values_.begin());
  momentum_ = std::move(momentum);
  buffers_ = std::move(buffers);
  round_ = round;
  return packet;
}

}  // namespace dgc::hub
