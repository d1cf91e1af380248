// Two passes over the entries of a tensor: one counts, one adds. The counts take 2 bytes an element
// of the largest tensor; nothing else is copied.
#include "exchange/senders.h"

#include <fmt/format.h>

#include <cstdint>

#include "dgc/error.h"
#include "wire/frame.h"

namespace dgc::exchange {
namespace {

/// The frames of one tensor, in the order of the ranks.
using Frames = std::vector<wire::FrameView>;

std::vector<Frames> by_tensor(std::span<const CheckedMessage* const> messages,
                              std::span<const std::span<float>> targets) {
  std::vector<Frames> all(targets.size());
  for (const CheckedMessage* const message : messages) {
    std::span<const std::byte> rest = message->body();
    for (const FrameInfo& info : message->frames()) {
      if (info.tensor >= targets.size()) {
        throw Error(ErrorCode::unknown_tensor, "decode", fmt::format("tensor {}", info.tensor),
                    fmt::format("there are {} tensors here", targets.size()),
                    "sender and receiver must have the same model");
      }
      const std::size_t size = targets[info.tensor].size();
      if (size != info.elements && size != 0) {
        throw Error(ErrorCode::shape_mismatch, "decode", fmt::format("tensor {}", info.tensor),
                    fmt::format("{} elements in the message, {} here", info.elements, size),
                    "sender and receiver must have the same model");
      }
      wire::FrameView frame;
      wire::parse_frame(rest, frame);
      rest = rest.subspan(info.bytes);
      if (size != 0) all[info.tensor].push_back(frame);
    }
  }
  return all;
}

}  // namespace

void add_mean_of_senders(std::span<const CheckedMessage* const> messages,
                         std::span<const std::span<float>> targets, std::span<const float> alphas,
                         const std::vector<bool>& whole) {
  if (messages.size() > UINT16_MAX) {
    throw Error(ErrorCode::limit_exceeded, "decode", "messages",
                fmt::format("{} are too many to count senders", messages.size()),
                "take the mean over all workers");
  }
  std::vector<std::uint16_t> senders;
  std::vector<float> factors(messages.size() + 1, 0.0f);  // by number of senders
  const std::vector<Frames> frames = by_tensor(messages, targets);
  for (std::size_t t = 0; t < targets.size(); ++t) {
    if (frames[t].empty()) continue;
    const std::span<float> target = targets[t];
    senders.assign(whole[t] ? 0 : target.size(), 0);
    for (std::size_t n = 1; n < factors.size(); ++n) {
      factors[n] = alphas[t] * (static_cast<float>(messages.size()) / static_cast<float>(n));
    }
    if (!whole[t]) {
      for (const wire::FrameView& frame : frames[t]) {
        frame.for_each_block([&](const std::uint32_t* at, const float* values, std::size_t count) {
          for (std::size_t i = 0; i < count; ++i) {
            if (values[i] != 0.0f) ++senders[at[i]];
          }
        });
      }
    }
    for (const wire::FrameView& frame : frames[t]) {
      frame.for_each_block([&](const std::uint32_t* at, const float* values, std::size_t count) {
        for (std::size_t i = 0; i < count; ++i) {
          const float factor = whole[t] ? alphas[t] : factors[senders[at[i]]];
          target[at[i]] += factor * values[i];
        }
      });
    }
  }
}

}  // namespace dgc::exchange
