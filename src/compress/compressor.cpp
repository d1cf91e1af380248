// A step of one worker, in the order the data flows: scale and clip, accumulate and collect
// candidates (one fused pass, in pieces for threads), trim to k, encode, mask.
//
// Paper: algorithm 4 and section 3; deviations: every selection is exact (compress/select.h), the
// error of a quantised value stays in v, and masking leaves tensors alone that are sent whole.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>
#include <vector>

#include "compress/compressor_impl.h"
#include "compress/internals.h"
#include "compress/options.h"
#include "dgc/error.h"
#include "wire/values.h"

namespace dgc {
namespace {

using namespace compress;

/// Elements per task. Small enough to balance two threads over ResNet-50, large enough that a task
/// (about 50 µs) hides the cost of handing it out.
constexpr std::size_t kPiece = 1 << 17;

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void lower(std::atomic<std::size_t>& minimum, std::size_t value) noexcept {
  std::size_t seen = minimum.load(std::memory_order_relaxed);
  while (value < seen && !minimum.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
}

[[noreturn]] void reject(std::string subject, std::string problem, std::string hint = {}) {
  throw Error(ErrorCode::invalid_argument, "compress", std::move(subject), std::move(problem),
              std::move(hint));
}

}  // namespace

void Compressor::Impl::check_gradients(std::span<const Gradient> gradients) const {
  std::size_t next = 0;
  for (const Gradient& gradient : gradients) {
    if (gradient.tensor >= slots.size()) {
      reject(fmt::format("tensor {}", gradient.tensor),
             fmt::format("the state has {} tensors", slots.size()));
    }
    const TensorSpec& expected = spec(gradient.tensor);
    if (gradient.tensor < next) {
      reject(fmt::format("'{}'", expected.name), "gradients are not in increasing order of tensor");
    }
    next = gradient.tensor + 1;
    if (gradient.values.size() != expected.elements()) {
      throw Error(ErrorCode::shape_mismatch, "compress", fmt::format("'{}'", expected.name),
                  fmt::format("the gradient has {} elements, the tensor is {} ({})",
                              gradient.values.size(), expected.shape_text(), expected.elements()));
    }
  }
}

void Compressor::Impl::check_call(std::span<const Gradient> gradients) const {
  check_gradients(gradients);
  for (const Gradient& gradient : gradients) {
    if (!slots[gradient.tensor].undo.pending) continue;
    throw Error(ErrorCode::wrong_order, "compress", fmt::format("'{}'", spec(gradient.tensor).name),
                "was already compressed in this step", "call commit() or restore() first");
  }
}

void Compressor::Impl::check_room(std::span<const Gradient> gradients, std::size_t room) const {
  std::size_t needed = kMessageOverhead;
  for (const Gradient& gradient : gradients) {
    const std::size_t frame = frame_bound_of(gradient.tensor);
    if (frame > kMaxElements) {
      throw Error(ErrorCode::limit_exceeded, "compress",
                  fmt::format("'{}'", spec(gradient.tensor).name),
                  fmt::format("a frame of up to {} bytes is too long", frame),
                  "split the tensor or lower the ratio");
    }
    needed += frame;
  }
  if (room < needed) {
    throw Error(ErrorCode::buffer_too_small, "compress", "message",
                fmt::format("the buffer has {} bytes of {}", room, needed), "size it with bound()");
  }
}

double Compressor::Impl::norm(std::span<const Gradient> gradients) {
  // Fixed pieces, each summed in fixed lanes, added in order: the same bits for any thread count.
  plan(gradients);
  std::vector<double> sums(pieces.size());
  pool.run(pieces.size(), [&](std::size_t i, int) {
    double lanes[kNormLanes] = {};
    const TensorPiece& piece = pieces[i];
    kernels.add_squares(jobs[piece.slot].gradient.data() + piece.begin, piece.count, lanes);
    for (const double lane : lanes) sums[i] += lane;
  });
  double total = 0.0;
  for (const double sum : sums) total += sum;
  return std::sqrt(total);
}

/// 1/N, the caller's factor and clipping in one multiplication per element.
float Compressor::Impl::scale_for(std::span<const Gradient> gradients, const Call& call) {
  if (!std::isfinite(call.scale)) reject("scale", fmt::format("{} is not finite", call.scale));
  const double workers = state.workers();
  const double factor = call.scale / workers;
  clip_factor = 1.0;
  if (options.clip_norm > 0.0) {
    const double all = call.norm ? *call.norm : norm(gradients);
    if (!std::isfinite(all)) {
      for (const Gradient& gradient : gradients) {
        for (std::size_t i = 0; i < gradient.values.size(); ++i) {
          if (std::isfinite(gradient.values[i])) continue;
          throw Error(ErrorCode::nonfinite_gradient, "compress",
                      fmt::format("'{}'", spec(gradient.tensor).name),
                      fmt::format("{} at index {}, step {}, rank {}", gradient.values[i], i,
                                  state.step(), state.rank()),
                      "nothing was accumulated; look at the loss and the learning rate");
        }
      }
      throw Error(ErrorCode::nonfinite_gradient, "compress", "norm",
                  fmt::format("the norm of all gradients is {} at step {}, rank {}", all,
                              state.step(), state.rank()),
                  "nothing was accumulated");
    }
    // The local share of the threshold is N^-1/2 of it, on gradients already scaled by 1/N: N
    // independent gradients of that norm add up to the global one (paper, section 3.2).
    const double local = options.clip_norm / std::sqrt(workers);
    const double scaled_norm = all * std::fabs(factor);
    if (scaled_norm > local) clip_factor = local / scaled_norm;
  }
  return static_cast<float>(factor * clip_factor);
}

void Compressor::Impl::plan(std::span<const Gradient> gradients) {
  jobs.clear();
  pieces.clear();
  for (const Gradient& gradient : gradients) {
    TensorJob& job = jobs.emplace_back();
    job.tensor = gradient.tensor;
    job.gradient = gradient.values;
    job.k = k_of(gradient.tensor);
    job.whole = job.k == gradient.values.size();
    // Trimming a candidate costs about a fifth of what a second pass costs an element.
    job.limit = 8 * job.k + 16 * kKernelBlock;
    job.first_piece = pieces.size();
    for (std::size_t begin = 0; begin < gradient.values.size(); begin += kPiece) {
      pieces.push_back({jobs.size() - 1, begin, std::min(kPiece, gradient.values.size() - begin)});
    }
    job.pieces = pieces.size() - job.first_piece;
  }
}

void Compressor::Impl::begin(std::span<const Gradient> gradients, const Call& call) {
  const Clock::time_point start = Clock::now();
  scale = scale_for(gradients, call);
  if (!step_open) {
    std::fill(stats.begin(), stats.end(), TensorStats{});
    step_open = true;
  }
  plan(gradients);
  for (const TensorJob& job : jobs) {
    std::vector<CandidateList>& lists = slots[job.tensor].undo.candidates;
    if (lists.size() < job.pieces) lists.resize(job.pieces);
    for (CandidateList& list : lists) list.clear();
    slots[job.tensor].undo.whole.clear();
  }
  seconds.select += seconds_since(start);
}

void Compressor::Impl::place_frames(std::span<std::byte> room) {
  for (TensorJob& job : jobs) {
    const std::size_t bound = frame_bound_of(job.tensor);
    job.frame = room.first(bound);
    room = room.subspan(bound);
  }
}

void Compressor::Impl::guess_threshold(TensorJob& job, Scratch& mine) const {
  if (job.whole || options.selection == Selection::exact) return;
  if (options.selection == Selection::reuse) {
    const CarriedThreshold& carried = slots[job.tensor].carried;
    job.threshold = carried.guess(job.k);
    if (job.threshold != kNoCandidates) {
      // What runs ahead of v is not v: it cannot be taken out before it is known.
      if (look_ahead() == 0.0f) job.sure = std::max(job.threshold, carried.sure(job.k));
      return;
    }
  }
  job.threshold = sampled_threshold({.gradient = job.gradient,
                                     .velocity = std::as_const(state).velocity(job.tensor),
                                     .residual = std::as_const(state).residual(job.tensor),
                                     .rule = rule,
                                     .scale = scale,
                                     .momentum = factor(),
                                     .seed = state.step() * 0x9E3779B97F4A7C15u},
                                    job.k, mine.trim.magnitudes);
}

void Compressor::Impl::accumulate_piece(std::size_t index) {
  const TensorPiece& piece = pieces[index];
  TensorJob& job = jobs[piece.slot];
  CandidateList& list = candidates_of(job)[index - job.first_piece];
  const std::span<float> u = state.velocity(job.tensor);
  const std::span<float> v = state.residual(job.tensor);
  for (std::size_t begin = piece.begin; begin < piece.begin + piece.count; begin += kKernelBlock) {
    const bool enough = job.collected.load(std::memory_order_relaxed) > job.limit;
    const Accumulate block{.gradient = job.gradient.data() + begin,
                           .velocity = has_velocity(rule) ? u.data() + begin : nullptr,
                           .residual = v.data() + begin,
                           .count = std::min(kKernelBlock, piece.begin + piece.count - begin),
                           .scale = scale,
                           .momentum = factor(),
                           .threshold = enough ? kNoCandidates : job.threshold,
                           .sure = enough ? kNoCandidates : job.sure,
                           .first_index = static_cast<std::uint32_t>(begin)};
    EntryArrays out = list.room_for(block.count);
    if (!masks()) out.velocities = nullptr;
    const Accumulated done = kernels.accumulate[static_cast<int>(rule)](block, out);
    if (done.first_nonfinite != kAllFinite) lower(job.nonfinite, begin + done.first_nonfinite);
    if (done.candidates == 0) continue;
    job.collected.fetch_add(done.candidates, std::memory_order_relaxed);
    list.added(done.candidates);
  }
}

void Compressor::Impl::throw_if_nonfinite() const {
  for (const TensorJob& job : jobs) {
    const std::size_t index = job.nonfinite.load();
    if (index == kAllFinite) continue;
    throw Error(ErrorCode::nonfinite_gradient, "compress",
                fmt::format("'{}'", spec(job.tensor).name),
                fmt::format("{} at index {}, step {}, rank {}", job.gradient[index], index,
                            state.step(), state.rank()),
                "nothing is sent and the value did not enter the residual; look at the loss and "
                "the learning rate");
  }
}

void Compressor::Impl::put_back(TensorJob& job) noexcept {
  const std::uint32_t sure = std::exchange(job.sure, kNoCandidates);
  if (sure == kNoCandidates) return;
  const std::span<float> u = state.velocity(job.tensor);
  const std::span<float> v = state.residual(job.tensor);
  for (const CandidateList& candidates : candidates_of(job)) {
    const EntryArrays list = candidates.entries();
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      if (magnitude_bits(list.values[i]) < sure) continue;
      v[list.indices[i]] = list.values[i];
      if (masks()) u[list.indices[i]] = list.velocities[i];
    }
  }
}

void Compressor::Impl::put_all_back() noexcept {
  for (TensorJob& job : jobs) {
    if (slots[job.tensor].undo.pending) {
      roll_back(job.tensor);
    } else {
      put_back(job);
    }
  }
}

/// The guess failed: finds a threshold from v itself and collects again.
std::uint32_t Compressor::Impl::reselect(const TensorJob& job, Scratch& mine) {
  const std::span<const float> u = std::as_const(state).velocity(job.tensor);
  const std::span<const float> v = std::as_const(state).residual(job.tensor);
  const std::size_t wanted = std::max(job.k, slots[job.tensor].carried.aim(job.k));
  const std::uint32_t threshold = exact_threshold(v, std::min(wanted, v.size()), mine.histogram);
  for (CandidateList& list : candidates_of(job)) list.clear();
  CandidateList& list = candidates_of(job).front();
  for (std::size_t begin = 0; begin < v.size(); begin += kKernelBlock) {
    const std::size_t count = std::min(kKernelBlock, v.size() - begin);
    EntryArrays out = list.room_for(count);
    if (!masks()) out.velocities = nullptr;
    list.added(kernels.collect(masks() ? u.data() + begin : nullptr, v.data() + begin, count,
                               threshold, static_cast<std::uint32_t>(begin), out));
  }
  return threshold;
}

void Compressor::Impl::select_sparse(TensorJob& job, Scratch& mine) {
  TensorStats& stat = stats[job.tensor];
  Undo& undo = slots[job.tensor].undo;
  const std::size_t collected = job.collected.load();
  CarriedThreshold& carried = slots[job.tensor].carried;
  if (job.threshold != kNoCandidates && collected < job.k) carried.fell_short();
  stat.reselected = collected < job.k || collected > job.limit;
  if (stat.reselected) {
    put_back(job);
    job.threshold = reselect(job, mine);
  }
  Trimmed trimmed = trim(kernels, candidates_of(job), job.k, job.sure, mine.trim);
  if (trimmed.too_sure) {
    carried.was_too_sure();
    put_back(job);
    trimmed = trim(kernels, candidates_of(job), job.k, kNoCandidates, mine.trim);
  }
  undo.selection = trimmed;
  undo.pending = true;
  stat.candidates = trimmed.found;
  stat.threshold = std::bit_cast<float>(trimmed.smallest);
  carried.update(trimmed.found, job.k, trimmed.smallest, job.threshold);
}

void Compressor::Impl::check_finite(const TensorJob& job, std::span<const float> values,
                                    std::span<const std::uint32_t> indices) const {
  if (wire::all_finite(values)) return;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (std::isfinite(values[i])) continue;
    throw Error(ErrorCode::nonfinite_residual, "compress",
                fmt::format("'{}'", spec(job.tensor).name),
                fmt::format("the residual is {} at index {}, step {}, rank {}", values[i],
                            indices.empty() ? i : indices[i], state.step(), state.rank()),
                "accumulated gradients overflow float; go back to a checkpoint");
  }
}

void Compressor::Impl::finish_job(TensorJob& job, Scratch& mine) {
  stats[job.tensor] = {.target = job.k};
  const Clock::time_point start = Clock::now();
  if (job.whole) {
    check_finite(job, state.residual(job.tensor), {});
  } else {
    select_sparse(job, mine);
  }
  const Clock::time_point selected = Clock::now();
  if (job.whole) {
    deliver_whole(job, mine);
  } else {
    deliver_sparse(job, mine);
  }
  mine.select_seconds += std::chrono::duration<double>(selected - start).count();
  mine.encode_seconds += seconds_since(selected);
}

Compressor::Compressor(State& state, CompressOptions options) {
  check_options(options, state);
  impl_ = std::make_unique<Impl>(state, std::move(options));
}

Compressor::~Compressor() = default;

const CompressOptions& Compressor::options() const noexcept { return impl_->options; }

void Compressor::change_schedule(Schedule schedule) {
  if (impl_->step_open) {
    throw Error(ErrorCode::wrong_order, "compress", "schedule", "cannot change within a step",
                "call commit() or restore() first");
  }
  impl_->options.schedule = std::move(schedule);
}

double Compressor::norm(std::span<const Gradient> gradients) const {
  impl_->check_gradients(gradients);
  return impl_->norm(gradients);
}

std::size_t Compressor::bound(std::span<const Gradient> gradients) const {
  impl_->check_gradients(gradients);
  std::size_t bytes = kMessageOverhead;
  for (const Gradient& gradient : gradients) bytes += impl_->frame_bound_of(gradient.tensor);
  return bytes;
}

std::size_t Compressor::bound() const {
  std::size_t bytes = kMessageOverhead;
  for (std::size_t i = 0; i < impl_->slots.size(); ++i) bytes += impl_->frame_bound_of(i);
  return bytes;
}

std::size_t Compressor::compress(std::span<const Gradient> gradients, std::span<std::byte> out) {
  return compress(gradients, out, Call{});
}

void Compressor::Impl::run() {
  const Clock::time_point start = Clock::now();
  const auto scratch_of = [this](int worker) -> Scratch& {
    return scratch[static_cast<std::size_t>(worker)];
  };
  pool.run(jobs.size(),
           [&](std::size_t i, int worker) { guess_threshold(jobs[i], scratch_of(worker)); });
  for (const TensorJob& job : jobs) slots[job.tensor].accumulated = true;
  Clock::time_point accumulated;
  try {
    pool.run(pieces.size(), [&](std::size_t i, int) { accumulate_piece(i); });
    throw_if_nonfinite();
    accumulated = Clock::now();
    for (Scratch& thread : scratch) thread.select_seconds = thread.encode_seconds = 0.0;
    pool.run(jobs.size(), [&](std::size_t i, int worker) {
      // A thread that is alone knows where the frame before has ended: nothing to move later.
      if (pool.threads() == 1 && i > 0 && !jobs[i].laid_out) {
        std::byte* const begin = jobs[i - 1].frame.data() + stats[jobs[i - 1].tensor].frame.bytes;
        jobs[i].frame = {begin, jobs[i].frame.data() + jobs[i].frame.size()};
      }
      finish_job(jobs[i], scratch_of(worker));
    });
  } catch (...) {
    put_all_back();
    throw;
  }

  // Threads select and encode at the same time: the wall time of that is divided by what they say.
  double selecting = 0.0;
  double encoding = 0.0;
  for (const Scratch& thread : scratch) {
    selecting += thread.select_seconds;
    encoding += thread.encode_seconds;
  }
  const double both = seconds_since(accumulated);
  const double share = selecting + encoding > 0.0 ? encoding / (selecting + encoding) : 0.0;
  seconds.select +=
      std::chrono::duration<double>(accumulated - start).count() + both * (1.0 - share);
  seconds.encode += both * share;
}

std::size_t Compressor::compress(std::span<const Gradient> gradients, std::span<std::byte> out,
                                 const Call& call) {
  Impl& my = *impl_;
  my.check_call(gradients);
  const std::size_t notice = call.notice != nullptr ? notice_bytes(*call.notice) : 0;
  my.check_room(gradients, out.size() - std::min(out.size(), notice));
  my.begin(gradients, call);
  MessageHeader header{.step = my.state.step(),
                       .schema = my.options.schema,
                       .sender = static_cast<std::uint16_t>(my.state.rank())};
  if (call.notice != nullptr) header.notice = *call.notice;
  MessageWriter writer(out, header);
  my.place_frames(writer.room());
  my.run();
  const Clock::time_point start = Clock::now();
  for (const TensorJob& job : my.jobs) {
    writer.settle(static_cast<std::uint32_t>(job.tensor),
                  job.frame.first(my.stats[job.tensor].frame.bytes));
  }
  const std::size_t size = writer.finish();
  my.seconds.encode += seconds_since(start);
  return size;
}

void compress::Internals::lay_out(Compressor& compressor, std::span<const Gradient> gradients,
                                  std::span<float> values, ValueType transport,
                                  const Compressor::Call& call) {
  Compressor::Impl& my = *compressor.impl_;
  my.check_call(gradients);
  std::size_t total = 0;
  for (const Gradient& gradient : gradients) total += gradient.values.size();
  if (values.size() != total) {
    throw Error(ErrorCode::shape_mismatch, "compress", "values",
                fmt::format("room for {} elements, the gradients have {}", values.size(), total));
  }
  std::fill(values.begin(), values.end(), 0.0f);
  my.begin(gradients, call);
  std::size_t at = 0;
  for (TensorJob& job : my.jobs) {
    job.laid_out = true;
    job.target = values.subspan(at, job.gradient.size());
    at += job.gradient.size();
  }
  my.run();
  for (const TensorJob& job : my.jobs) {
    const std::size_t bytes = wire::value_bytes(transport, job.gradient.size());
    my.stats[job.tensor].frame = {.tensor = static_cast<std::uint32_t>(job.tensor),
                                  .elements = job.gradient.size(),
                                  .entries = job.gradient.size(),
                                  .value_type = transport,
                                  .coding = IndexCoding::dense,
                                  .bytes = bytes,
                                  .value_bytes = bytes};
  }
}

void Compressor::applied(const CheckedMessage& message) {
  const float feedback = impl_->options.feedback();
  if (feedback == 0.0f) return;
  std::vector<std::span<float>> residuals;
  for (std::size_t t = 0; t < impl_->slots.size(); ++t) {
    residuals.push_back(impl_->state.residual(t));
  }
  decode_add(message, residuals, feedback / static_cast<float>(impl_->state.workers()));
}

void Compressor::commit() {
  for (Slot& slot : impl_->slots) slot.undo.pending = slot.accumulated = false;
  impl_->state.set_step(impl_->state.step() + 1);
  impl_->step_open = false;
}

void Compressor::restore() {
  for (std::size_t tensor = 0; tensor < impl_->slots.size(); ++tensor) impl_->roll_back(tensor);
  impl_->step_open = false;
}

bool compress::Internals::accumulated(const Compressor& compressor, std::size_t tensor) noexcept {
  return compressor.impl_->slots[tensor].accumulated;
}
std::span<const TensorStats> Compressor::stats() const noexcept { return impl_->stats; }
double Compressor::clip_factor() const noexcept { return impl_->clip_factor; }
Compressor::Seconds Compressor::seconds() const noexcept { return impl_->seconds; }

}  // namespace dgc
