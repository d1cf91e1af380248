// What becomes of a selection: a frame of the message or a part of an array; what is left of it in
// v and u; and the way back.
#include <algorithm>
#include <array>

#include "compress/compressor_impl.h"
#include "wire/frame.h"
#include "wire/frame_stream.h"

namespace dgc {

using namespace compress;

namespace {

/// Entries ahead that are asked for: scattered accesses to u and v miss every cache.
constexpr std::size_t kAhead = 16;

}  // namespace

void Compressor::Impl::deliver_sparse(const TensorJob& job, Scratch& mine) {
  if (look_ahead() != 0.0f) {
    deliver_ahead(job, mine);
    return;
  }
  if (job.laid_out) {
    lay_out_sparse(job, mine);
  } else if (values_of(false) != ValueType::fp32) {
    encode_selected(job, mine);
    take_out_rounded(job, mine);
    return;
  } else if (!stream_frame(job)) {
    encode_selected(job, mine);
  }
  take_out_exact(job, mine);
}

void Compressor::Impl::gather_checked(const TensorJob& job, bool with_velocities, Scratch& mine) {
  gather(kernels, candidates_of(job), slots[job.tensor].undo.selection, with_velocities,
         mine.selected);
  check_finite(job, mine.selected.values, mine.selected.indices);
}

void Compressor::Impl::lay_out_sparse(const TensorJob& job, Scratch& mine) {
  gather_checked(job, false, mine);
  const SelectedEntries& selected = mine.selected;
  for (std::size_t i = 0; i < selected.indices.size(); ++i) {
    job.target[selected.indices[i]] = selected.values[i];
  }
}

/// The usual case, fp32 values and Rice codes: from the lists of candidates straight to the frame.
/// False where another coding is asked for, or would be smaller.
bool Compressor::Impl::stream_frame(const TensorJob& job) {
  const Trimmed& selection = slots[job.tensor].undo.selection;
  const FrameInfo planned{.tensor = static_cast<std::uint32_t>(job.tensor),
                          .elements = job.gradient.size(),
                          .entries = selection.selected};
  if (!wire::FrameStream::suits(planned, coding_of(false))) return false;
  wire::FrameStream frame(planned, rice, job.frame);
  // A chunk stays in the first cache between being picked and being encoded.
  constexpr std::size_t kChunk = 1024;
  std::array<std::uint32_t, wire::kBlock + kChunk + kSlack> indices;
  std::array<float, wire::kBlock + kChunk + kSlack> values;
  std::size_t held = 0;
  for (const CandidateList& list : candidates_of(job)) {
    for (std::size_t begin = 0; begin < list.size(); begin += kChunk) {
      const EntryArrays out{indices.data() + held, values.data() + held, nullptr};
      const std::size_t more =
          kernels.pick(list.entries().from(begin), std::min(kChunk, list.size() - begin),
                       selection.smallest, kNoCandidates, out);
      check_finite(job, {out.values, more}, {out.indices, more});
      held += more;
      const std::size_t whole = held / wire::kBlock * wire::kBlock;
      frame.add({indices.data(), whole}, {values.data(), whole});
      held -= whole;
      std::copy_n(indices.data() + whole, held, indices.data());
      std::copy_n(values.data() + whole, held, values.data());
    }
  }
  frame.add({indices.data(), held}, {values.data(), held});
  const FrameInfo info = frame.finish();
  if (coding_of(false) == IndexCoding::automatic && !wire::rice_is_smallest(info)) return false;
  stats[job.tensor].frame = info;
  return true;
}

void Compressor::Impl::encode_selected(const TensorJob& job, Scratch& mine) {
  // Nothing that was selected is zero, so that fp32 sends all of it, exactly.
  const bool exact = values_of(false) == ValueType::fp32;
  gather_checked(job, !exact && masks(), mine);
  const SelectedEntries& selected = mine.selected;
  mine.decoded.resize(exact ? 0 : selected.values.size());
  stats[job.tensor].frame = wire::encode_checked({.tensor = static_cast<std::uint32_t>(job.tensor),
                                                  .elements = job.gradient.size(),
                                                  .indices = selected.indices,
                                                  .values = selected.values,
                                                  .value_type = values_of(false),
                                                  .coding = coding_of(false)},
                                                 job.frame, mine.decoded);
}

/// Everything selected arrives as it is: what the pass has not taken out leaves zeros too. (v - v
/// is +0.)
void Compressor::Impl::take_out_exact(const TensorJob& job, const Scratch& mine) {
  const std::span<float> v = state.residual(job.tensor);
  const std::span<float> u = state.velocity(job.tensor);
  stats[job.tensor].sent = slots[job.tensor].undo.selection.selected;
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
/// were.
void Compressor::Impl::take_out_rounded(const TensorJob& job, Scratch& mine) {
  const std::span<float> v = state.residual(job.tensor);
  const std::span<float> u = state.velocity(job.tensor);
  const EntryArrays log = mine.selected.arrays();
  const std::size_t count = mine.selected.indices.size();
  std::size_t sent = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (i + kAhead < count) {
      __builtin_prefetch(v.data() + log.indices[i + kAhead], 1);
      if (masks()) __builtin_prefetch(u.data() + log.indices[i + kAhead], 1);
    }
    const std::uint32_t index = log.indices[i];
    const bool travels = mine.decoded[i] != 0.0f;
    v[index] = travels ? log.values[i] - mine.decoded[i] : log.values[i];
    if (masks()) u[index] = travels ? 0.0f : log.velocities[i];
    sent += travels;
  }
  stats[job.tensor].sent = sent;
}

/// Global momentum with Nesterov: what is sent runs ahead of v by m·g, and that much less stays
/// behind, to be made good when the entry is sent again.
void Compressor::Impl::deliver_ahead(const TensorJob& job, Scratch& mine) {
  gather(kernels, candidates_of(job), slots[job.tensor].undo.selection, false, mine.selected);
  SelectedEntries& selected = mine.selected;
  const std::span<float> v = state.residual(job.tensor);
  for (std::size_t i = 0; i < selected.indices.size(); ++i) {
    selected.values[i] += look_ahead() * job.gradient[selected.indices[i]];
  }
  check_finite(job, selected.values, selected.indices);
  mine.decoded = selected.values;
  if (!job.laid_out) {
    stats[job.tensor].frame =
        wire::encode_checked({.tensor = static_cast<std::uint32_t>(job.tensor),
                              .elements = job.gradient.size(),
                              .indices = selected.indices,
                              .values = selected.values,
                              .value_type = values_of(false),
                              .coding = coding_of(false)},
                             job.frame, mine.decoded);
  }
  for (std::size_t i = 0; i < selected.indices.size(); ++i) {
    const std::uint32_t index = selected.indices[i];
    if (job.laid_out) job.target[index] = mine.decoded[i];
    v[index] -= mine.decoded[i];
    stats[job.tensor].sent += mine.decoded[i] != 0.0f;
  }
}

void Compressor::Impl::deliver_whole(const TensorJob& job, Scratch& mine) {
  Slot& slot = slots[job.tensor];
  TensorStats& stat = stats[job.tensor];
  const std::span<float> v = state.residual(job.tensor);
  slot.undo.whole.assign(v.begin(), v.end());
  slot.undo.pending = true;
  std::span<const float> sent = v;
  if (look_ahead() != 0.0f) {
    std::vector<float>& ahead = mine.selected.values;
    ahead.resize(v.size());
    for (std::size_t i = 0; i < v.size(); ++i) ahead[i] = v[i] + look_ahead() * job.gradient[i];
    check_finite(job, ahead, {});
    sent = ahead;
  }
  if (job.laid_out) {
    std::copy(sent.begin(), sent.end(), job.target.begin());
    stat.sent = v.size() - static_cast<std::uint64_t>(std::count(sent.begin(), sent.end(), 0.0f));
    for (std::size_t i = 0; i < v.size(); ++i) v[i] -= job.target[i];
    return;
  }
  mine.decoded.resize(v.size());
  stat.frame = encode_frame({.tensor = static_cast<std::uint32_t>(job.tensor),
                             .elements = v.size(),
                             .indices = {},
                             .values = sent,
                             .value_type = values_of(true),
                             .coding = coding_of(true)},
                            job.frame, mine.decoded);
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
  std::copy(undo.whole.begin(), undo.whole.end(), v.begin());
  for (const CandidateList& list : undo.candidates) {
    const EntryArrays log = list.entries();
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (magnitude_bits(log.values[i]) < undo.selection.smallest) continue;
      v[log.indices[i]] = log.values[i];
      if (masks()) u[log.indices[i]] = log.velocities[i];
    }
  }
}

}  // namespace dgc
