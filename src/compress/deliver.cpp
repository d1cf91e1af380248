// What becomes of a selection: a frame of the message or a part of an array; what is left of it in
// v and u; and the way back.
#include <algorithm>

#include "compress/compressor_impl.h"
#include "wire/frame.h"

namespace dgc {

using namespace compress;

namespace {

/// Entries ahead that are asked for: scattered accesses to u and v miss every cache.
constexpr std::size_t kAhead = 16;

}  // namespace

void Compressor::Impl::deliver_sparse(const TensorJob& job, Scratch& mine) {
  Slot& slot = slots[job.tensor];
  TensorStats& stat = stats[job.tensor];
  const SelectedEntries& selected = slot.undo.entries;
  if (job.laid_out) {
    for (std::size_t i = 0; i < selected.indices.size(); ++i) {
      job.target[selected.indices[i]] = selected.values[i];
    }
    take_out_exact(job, mine);
    return;
  }
  // Nothing that was selected is zero, so that fp32 sends all of it, exactly.
  const bool exact = values_of(false) == ValueType::fp32;
  slot.frame.resize(frame_bound_of(job.tensor));
  mine.decoded.resize(exact ? 0 : selected.values.size());
  stat.frame = wire::encode_checked({.tensor = static_cast<std::uint32_t>(job.tensor),
                                     .elements = job.gradient.size(),
                                     .indices = selected.indices,
                                     .values = selected.values,
                                     .value_type = values_of(false),
                                     .coding = coding_of(false)},
                                    slot.frame, mine.decoded);
  if (exact) {
    take_out_exact(job, mine);
  } else {
    take_out_rounded(job, mine);
  }
}

/// Everything selected arrives as it is: what the pass has not taken out leaves zeros too. (v - v
/// is +0.)
void Compressor::Impl::take_out_exact(const TensorJob& job, const Scratch& mine) {
  const std::span<float> v = state.residual(job.tensor);
  const std::span<float> u = state.velocity(job.tensor);
  stats[job.tensor].sent = slots[job.tensor].undo.entries.indices.size();
  const std::uint32_t* const rest = mine.trim.doubtful.entries().indices;
  const std::size_t count = mine.trim.doubtful.size();
  for (std::size_t i = 0; i < count; ++i) {
    if (i + kAhead < count) {
      __builtin_prefetch(v.data() + rest[i + kAhead], 1);
      if (masks()) __builtin_prefetch(u.data() + rest[i + kAhead], 1);
    }
    v[rest[i]] = 0.0f;
    // Momentum factor masking: what was sent must not go on moving in the old direction.
    if (masks()) u[rest[i]] = 0.0f;
  }
}

/// The rounding error stays in v. Entries that would arrive as zero do not travel: they are as they
/// were, and leave the log.
void Compressor::Impl::take_out_rounded(const TensorJob& job, const Scratch& mine) {
  SelectedEntries& selected = slots[job.tensor].undo.entries;
  const std::span<float> v = state.residual(job.tensor);
  const std::span<float> u = state.velocity(job.tensor);
  const EntryArrays log = selected.arrays();
  const std::size_t count = selected.indices.size();
  std::size_t sent = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (i + kAhead < count) {
      __builtin_prefetch(v.data() + log.indices[i + kAhead], 1);
      if (masks()) __builtin_prefetch(u.data() + log.indices[i + kAhead], 1);
    }
    const std::uint32_t index = log.indices[i];
    const float value = log.values[i];
    const bool travels = mine.decoded[i] != 0.0f;
    v[index] = travels ? value - mine.decoded[i] : value;
    if (masks()) u[index] = travels ? 0.0f : log.velocities[i];
    log.indices[sent] = index;
    log.values[sent] = value;
    if (masks()) log.velocities[sent] = log.velocities[i];
    sent += travels;
  }
  selected.resize(sent, masks());
  stats[job.tensor].sent = sent;
}

void Compressor::Impl::deliver_whole(const TensorJob& job, Scratch& mine) {
  Slot& slot = slots[job.tensor];
  TensorStats& stat = stats[job.tensor];
  const std::span<float> v = state.residual(job.tensor);
  slot.undo.entries.values.assign(v.begin(), v.end());
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
  const SelectedEntries& log = undo.entries;
  if (log.indices.empty()) std::copy(log.values.begin(), log.values.end(), v.begin());
  for (std::size_t i = 0; i < log.indices.size(); ++i) v[log.indices[i]] = log.values[i];
  for (std::size_t i = 0; i < log.velocities.size(); ++i) u[log.indices[i]] = log.velocities[i];
}

}  // namespace dgc
