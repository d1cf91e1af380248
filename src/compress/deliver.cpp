// What becomes of a selection: a frame of the message or a part of an array; what is left of it in
// v and u; and the way back.
#include <algorithm>

#include "compress/compressor_impl.h"

namespace dgc {

using namespace compress;

void Compressor::Impl::deliver_sparse(const TensorJob& job, Scratch& mine) {
  TensorStats& stat = stats[job.tensor];
  if (job.laid_out) {
    for (std::size_t i = 0; i < mine.indices.size(); ++i) {
      job.target[mine.indices[i]] = mine.values[i];
    }
    mine.decoded = mine.values;
  } else {
    Slot& slot = slots[job.tensor];
    slot.frame.resize(frame_bound_of(job.tensor));
    mine.decoded.resize(mine.values.size());
    stat.frame = encode_frame({.tensor = static_cast<std::uint32_t>(job.tensor),
                               .elements = job.gradient.size(),
                               .indices = mine.indices,
                               .values = mine.values,
                               .value_type = values_of(false),
                               .coding = coding_of(false)},
                              slot.frame, mine.decoded);
  }
  take_out(job, mine);
}

/// Only entries that travel are logged, reduced by what arrives, and masked.
void Compressor::Impl::take_out(const TensorJob& job, const Scratch& mine) {
  Undo& undo = slots[job.tensor].undo;
  const std::span<float> v = state.residual(job.tensor);
  const std::span<float> u = state.velocity(job.tensor);
  const bool mask = options.masking && rule != Rule::plain;
  undo.indices.resize(mine.indices.size());
  undo.residual.resize(mine.indices.size());
  undo.velocity.resize(mask ? mine.indices.size() : 0);
  constexpr std::size_t kAhead = 16;
  std::size_t sent = 0;
  for (std::size_t i = 0; i < mine.indices.size(); ++i) {
    if (i + kAhead < mine.indices.size()) {
      const std::uint32_t later = mine.indices[i + kAhead];
      __builtin_prefetch(v.data() + later, 1);
      if (mask) __builtin_prefetch(u.data() + later, 1);
    }
    const float decoded = mine.decoded[i];
    if (decoded == 0.0f) continue;
    const std::uint32_t index = mine.indices[i];
    undo.indices[sent] = index;
    undo.residual[sent] = std::exchange(v[index], v[index] - decoded);
    // Momentum factor masking: what was sent must not go on moving in the old direction.
    if (mask) undo.velocity[sent] = std::exchange(u[index], 0.0f);
    ++sent;
  }
  undo.indices.resize(sent);
  undo.residual.resize(sent);
  undo.velocity.resize(mask ? sent : 0);
  stats[job.tensor].sent = sent;
}

void Compressor::Impl::deliver_whole(const TensorJob& job, Scratch& mine) {
  Slot& slot = slots[job.tensor];
  TensorStats& stat = stats[job.tensor];
  const std::span<float> v = state.residual(job.tensor);
  slot.undo.residual.assign(v.begin(), v.end());
  if (job.laid_out) {
    std::copy(v.begin(), v.end(), job.target.begin());
    stat.sent = v.size() - static_cast<std::uint64_t>(std::count(v.begin(), v.end(), 0.0f));
    std::fill(v.begin(), v.end(), 0.0f);
    return;
  }
  slot.frame.resize(frame_bound_of(job.tensor));
  mine.decoded.resize(v.size());
  stat.frame = encode_frame({.tensor = static_cast<std::uint32_t>(job.tensor),
                             .elements = v.size(),
                             .indices = {},
                             .values = v,
                             .value_type = values_of(true),
                             .coding = coding_of(true)},
                            slot.frame, mine.decoded);
  for (std::size_t i = 0; i < v.size(); ++i) {
    stat.sent += mine.decoded[i] != 0.0f;
    v[i] -= mine.decoded[i];
  }
}

void Compressor::Impl::roll_back(std::size_t tensor) noexcept {
  Undo& undo = slots[tensor].undo;
  if (!std::exchange(undo.pending, false)) return;
  const std::span<float> v = state.residual(tensor);
  const std::span<float> u = state.velocity(tensor);
  if (undo.indices.empty()) std::copy(undo.residual.begin(), undo.residual.end(), v.begin());
  for (std::size_t i = 0; i < undo.indices.size(); ++i) v[undo.indices[i]] = undo.residual[i];
  for (std::size_t i = 0; i < undo.velocity.size(); ++i) u[undo.indices[i]] = undo.velocity[i];
}

}  // namespace dgc
