// The parts of a Compressor, shared by compressor.cpp (the pass over gradients) and deliver.cpp
// (what becomes of the selection).
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/parallel.h"
#include "compress/kernels.h"
#include "compress/select.h"
#include "dgc/compressor.h"
#include "wire/rice.h"

namespace dgc::compress {

/// A part of a tensor that one thread accumulates.
struct TensorPiece {
  std::size_t slot;  // position in this call's list of gradients
  std::size_t begin;
  std::size_t count;
};

/// What restore() puts back: the candidates that were selected, as the pass found them, or v of a
/// tensor that is sent whole. The lists are the log, so that nothing is copied for it.
struct Undo {
  std::vector<CandidateList> candidates;  // by piece; velocities only where masking needs them
  Trimmed selection{};
  std::vector<float> whole;
  bool pending = false;
};

/// Everything about a tensor that lives from step to step, beside State.
struct Slot {
  CarriedThreshold carried;
  Undo undo;
  bool accumulated = false;
};

/// One tensor of the current call.
struct TensorJob {
  std::size_t tensor = 0;
  std::span<const float> gradient;
  bool laid_out = false;  // in `target`; otherwise a frame is made, at the start of `frame`
  std::span<float> target;
  std::span<std::byte> frame;
  std::size_t k = 0;
  bool whole = false;
  std::uint32_t threshold = kNoCandidates;
  /// From where on the pass has taken candidates out of u and v already; the lists know what was
  /// there, until the undo log does.
  std::uint32_t sure = kNoCandidates;
  std::size_t first_piece = 0;
  std::size_t pieces = 0;
  std::size_t limit = 0;  // candidates beyond which collecting is given up
  std::atomic<std::size_t> collected{0};
  std::atomic<std::size_t> nonfinite{kAllFinite};  // lowest index seen

  TensorJob() = default;
  TensorJob(TensorJob&& other) noexcept
      : tensor(other.tensor),
        gradient(other.gradient),
        laid_out(other.laid_out),
        target(other.target),
        frame(other.frame),
        k(other.k),
        whole(other.whole),
        threshold(other.threshold),
        sure(other.sure),
        first_piece(other.first_piece),
        pieces(other.pieces),
        limit(other.limit) {}
};

/// Memory of one thread, kept between calls.
struct Scratch {
  TrimScratch trim;
  std::vector<std::uint32_t> histogram;
  SelectedEntries selected;
  std::vector<float> decoded;
  double select_seconds = 0.0;  // of this thread, in the current call
  double encode_seconds = 0.0;
};

}  // namespace dgc::compress

namespace dgc {

struct Compressor::Impl {
  State& state;
  CompressOptions options;
  compress::Rule rule;
  const compress::Kernels& kernels;
  const wire::RiceKernels& rice;
  ThreadPool pool;
  std::vector<compress::Scratch> scratch;
  std::vector<compress::Slot> slots;
  std::vector<TensorStats> stats;
  std::vector<compress::TensorJob> jobs;
  std::vector<compress::TensorPiece> pieces;
  double clip_factor = 1.0;
  float scale = 0.0f;  // of the gradients of this call: 1/N, the caller's factor and clipping
  Seconds seconds;
  bool step_open = false;  // something was compressed since the last commit or restore

  Impl(State& s, CompressOptions o)
      : state(s),
        options(std::move(o)),
        rule(compress::rule_of(options.needs_velocity() ? options.momentum : 0.0f, options.nesterov,
                               options.residual_decay)),
        kernels(compress::active_kernels()),
        rice(wire::rice_kernels(kernels.name)),
        pool(options.threads),
        scratch(static_cast<std::size_t>(options.threads)),
        slots(state.tensors().size()),
        stats(state.tensors().size()) {}

  const TensorSpec& spec(std::size_t tensor) const { return state.tensors()[tensor]; }

  std::size_t k_of(std::size_t tensor) const {
    const std::uint64_t elements = spec(tensor).elements();
    if (spec(tensor).dense) return elements;
    return entries_at(options.schedule.ratio_at(static_cast<std::int64_t>(state.step())), elements);
  }
  /// Whether what is sent leaves 0 behind in u.
  bool masks() const noexcept { return options.masking && compress::has_velocity(rule); }
  /// Of the rule: m, or what is left of v.
  float factor() const noexcept {
    return rule == compress::Rule::decayed ? options.residual_decay : options.momentum;
  }
  /// What is sent runs ahead of v by this much of its gradient: global momentum with Nesterov.
  float look_ahead() const noexcept { return options.nesterov ? options.feedback() * scale : 0.0f; }
  ValueType values_of(bool whole) const { return whole ? options.dense_values : options.values; }

  std::size_t frame_bound_of(std::size_t tensor) const {
    const std::uint64_t elements = spec(tensor).elements();
    const std::size_t k = k_of(tensor);
    return frame_bound(elements, k, values_of(k == elements), coding_of(k == elements));
  }
  /// Tensors sent whole ignore a sparse coding that the user asked for: dense is what "whole"
  /// means.
  IndexCoding coding_of(bool whole) const {
    return whole ? IndexCoding::automatic : options.indices;
  }

  void check_gradients(std::span<const Gradient> gradients) const;
  void check_call(std::span<const Gradient> gradients) const;
  void check_room(std::span<const Gradient> gradients, std::size_t room) const;
  double norm(std::span<const Gradient> gradients);
  float scale_for(std::span<const Gradient> gradients, const Call& call);
  void plan(std::span<const Gradient> gradients);
  void guess_threshold(compress::TensorJob& job, compress::Scratch& mine) const;
  void accumulate_piece(std::size_t piece);
  void throw_if_nonfinite() const;
  std::uint32_t reselect(const compress::TensorJob& job, compress::Scratch& mine);
  void select_sparse(compress::TensorJob& job, compress::Scratch& mine);
  void check_finite(const compress::TensorJob& job, std::span<const float> values,
                    std::span<const std::uint32_t> indices) const;
  /// Undoes what the pass has taken out on a guess.
  void put_back(compress::TensorJob& job) noexcept;
  /// As if nothing had been selected in this call.
  void put_all_back() noexcept;
  /// Tells each job where its frame goes: no two can meet, however long they get.
  void place_frames(std::span<std::byte> room);
  void finish_job(compress::TensorJob& job, compress::Scratch& mine);
  /// Plans the call, with a clean sheet for each of its tensors.
  void begin(std::span<const Gradient> gradients, const Call& call);
  /// Accumulates, selects and delivers each tensor, to where its job says.
  void run();

  // deliver.cpp: the selection becomes a frame, or is laid out in job.target; then it leaves v and
  // u, and is remembered until the commit.
  void deliver_sparse(const compress::TensorJob& job, compress::Scratch& mine);
  void lay_out_sparse(const compress::TensorJob& job, compress::Scratch& mine);
  bool stream_frame(const compress::TensorJob& job);
  void encode_selected(const compress::TensorJob& job, compress::Scratch& mine);
  /// The selection as arrays, in mine.selected.
  void gather_checked(const compress::TensorJob& job, bool with_velocities,
                      compress::Scratch& mine);
  void deliver_whole(const compress::TensorJob& job, compress::Scratch& mine);
  void deliver_ahead(const compress::TensorJob& job, compress::Scratch& mine);
  void take_out_exact(const compress::TensorJob& job, const compress::Scratch& mine);
  void take_out_rounded(const compress::TensorJob& job, compress::Scratch& mine);
  std::span<compress::CandidateList> candidates_of(const compress::TensorJob& job) {
    return std::span(slots[job.tensor].undo.candidates).first(job.pieces);
  }
  void roll_back(std::size_t tensor) noexcept;
};

}  // namespace dgc
