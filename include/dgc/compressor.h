// Deep Gradient Compression of one worker's gradients: correct, clip, select, mask, encode.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "dgc/schedule.h"
#include "dgc/state.h"
#include "dgc/wire.h"

namespace dgc {

namespace compress {
struct Internals;
}

/// How the k largest entries are found. All three select the same set (largest magnitude, ties to
/// the lower index) and differ in speed alone.
enum class Selection {
  reuse,    ///< one pass at the threshold of the last step, lowered a little; the default
  sampled,  ///< the paper's hierarchical sampling: a fresh threshold from a sample at each step
  exact,    ///< no guess: a histogram of all magnitudes at each step
};

std::string_view name_of(Selection selection) noexcept;
/// All of them.
std::span<const Selection> selections() noexcept;
/// Inverse of name_of. Throws Error(invalid_argument) that lists the accepted names.
Selection parse_selection(std::string_view name);

/// How momentum and sparse sending go together. At ratio 1 all three are momentum SGD.
enum class MomentumCorrection {
  local,   ///< the paper's: each worker accumulates a velocity u of its own, and v sums it up
  global,  ///< momentum of what all workers applied: m/N of it goes back into v. No u, no masking
  off,     ///< v accumulates plain gradients; whoever applies the sum adds momentum to it
};
std::string_view name_of(MomentumCorrection correction) noexcept;
/// All of them.
std::span<const MomentumCorrection> momentum_corrections() noexcept;
/// Inverse of name_of; "true" is local and "false" is off, as in files of version 0.2. Throws
/// Error(invalid_argument) that lists the accepted names.
MomentumCorrection parse_momentum_correction(std::string_view name);

struct CompressOptions {
  Schedule schedule{0.001};
  float momentum = 0.9f;  ///< m; 0 turns momentum correction off
  bool nesterov = false;
  MomentumCorrection momentum_correction = MomentumCorrection::local;
  bool masking = true;  ///< momentum factor masking; of local correction only
  /// beta: v = beta·v + g. Below 1 only without local or global momentum, in whose place it stands
  /// for rounds of local steps (dgc/local_steps.h).
  float residual_decay = 1.0f;
  double clip_norm = 0.0;  ///< threshold for the global gradient norm; 0 turns clipping off
  Selection selection = Selection::reuse;
  ValueType values = ValueType::fp32;
  ValueType dense_values = ValueType::fp32;  ///< for tensors that are sent whole
  IndexCoding indices = IndexCoding::automatic;
  std::uint32_t schema = 0;  ///< copied to MessageHeader::schema
  int threads = 1;           ///< including the calling one; results do not depend on it

  /// Whether a State needs a velocity for these options.
  bool needs_velocity() const noexcept {
    return momentum != 0.0f && momentum_correction == MomentumCorrection::local;
  }
  /// What of an applied sum goes back into the residuals of all workers together: m with global
  /// correction, else 0.
  float feedback() const noexcept {
    return momentum_correction == MomentumCorrection::global ? momentum : 0.0f;
  }
};

/// A tensor's gradient: the mean over the local mini-batch, not yet divided by the workers.
struct Gradient {
  std::size_t tensor = 0;
  std::span<const float> values;
};

/// What happened to one tensor in the last step.
struct TensorStats {
  std::uint64_t target = 0;      ///< k
  std::uint64_t sent = 0;        ///< entries in the frame that are not zero
  std::uint64_t candidates = 0;  ///< entries that passed the threshold, before trimming
  bool reselected = false;       ///< the guess failed and a second pass was needed
  float threshold = 0.0f;        ///< smallest magnitude selected
  FrameInfo frame;               ///< bytes == 0 when nothing was sent
};

/// One step of a worker:
///
///     const std::size_t bytes = compressor.compress(gradients, buffer);
///     … send buffer[0, bytes), receive and decode_add everybody's, and tell applied() …
///     compressor.commit();     // or restore(), if the exchange failed
///
/// A step may be compressed in several calls (buckets), each with other tensors. Tensors that are
/// in no call keep their u and v. The State must outlive the Compressor and must not be moved.
class Compressor {
 public:
  /// Throws Error(invalid_argument) for options outside their domain, and when they need a
  /// velocity that the state does not have.
  Compressor(State& state, CompressOptions options);
  ~Compressor();
  Compressor(const Compressor&) = delete;
  Compressor& operator=(const Compressor&) = delete;

  const CompressOptions& options() const noexcept;
  /// From the next step on. Not between compress() and commit().
  void change_schedule(Schedule schedule);

  /// L2 norm over all values, summed in double in a fixed order. NaN or Inf if any value is.
  double norm(std::span<const Gradient> gradients) const;

  /// Enough bytes for the message of these gradients at the current step.
  std::size_t bound(std::span<const Gradient> gradients) const;
  /// The same for all tensors of the state.
  std::size_t bound() const;

  struct Call {
    /// Multiplies the gradients beside 1/workers, e.g. 1 / loss scale.
    double scale = 1.0;
    /// Norm of all gradients of the step, when this call has only some of them.
    std::optional<double> norm;
    /// Goes with the message; it needs notice_bytes() more in `out`.
    const Notice* notice = nullptr;
  };

  /// Accumulates the gradients and writes the message of this step's selection to `out`. Returns
  /// its size. Gradients in increasing order of tensor.
  ///
  /// Errors, after which nothing is to be sent:
  /// - wrong_order, shape_mismatch, invalid_argument, buffer_too_small, limit_exceeded: nothing has
  ///   changed;
  /// - nonfinite_gradient, naming the first tensor and index: the bad values are taken as zero,
  ///   everything else stays accumulated as in a step that sent nothing. With clipping on, or
  ///   after a finite `norm()`, nothing has changed;
  /// - nonfinite_residual: a sum overflowed; nothing of this call is masked.
  std::size_t compress(std::span<const Gradient> gradients, std::span<std::byte> out,
                       const Call& call);
  std::size_t compress(std::span<const Gradient> gradients, std::span<std::byte> out);

  /// With global momentum correction: this message is part of the sum that all workers apply.
  /// Called for each, in the order of the ranks, before commit(). Does nothing otherwise.
  void applied(const CheckedMessage& message);
  /// The step was delivered: advances the state's step.
  void commit();
  /// The step was not delivered: u and v get back, bit for bit, what was selected from them. The
  /// gradients stay accumulated; the step is not advanced.
  void restore();

  /// Of the last step, by tensor; zeros for tensors that took no part.
  std::span<const TensorStats> stats() const noexcept;
  /// Factor that clipping applied in the last call; 1 when it did not fire.
  double clip_factor() const noexcept;

  /// Time spent in compress() since construction.
  struct Seconds {
    double select = 0.0;  ///< correct, accumulate, select
    double encode = 0.0;  ///< encode, mask, assemble
  };
  Seconds seconds() const noexcept;

 private:
  friend struct compress::Internals;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dgc
