// The passes over gradient, velocity and residual, one table of functions per instruction set.
//
// All tables compute the same bits: every operation is a single IEEE operation on float in the
// order written in accumulate_one, without fused multiply-add; sums run in kNormLanes fixed lanes.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "compress/update.h"

namespace dgc::compress {

/// Elements per kernel call. u, v and g of a block are 48 KiB: they stay in L1 or L2 between the
/// check of g and its accumulation, and a candidate buffer of this size can never overflow.
inline constexpr std::size_t kKernelBlock = 4096;

/// Lanes of a norm. A multiple of the doubles in every vector type.
inline constexpr std::size_t kNormLanes = 16;

/// Threshold that no entry passes: no collection.
inline constexpr std::uint32_t kNoCandidates = 0xFFFFFFFFu;

inline constexpr std::size_t kAllFinite = static_cast<std::size_t>(-1);

/// Magnitudes are compared as integers: for non-negative floats the order is the same, NaN and Inf
/// come out largest instead of being lost, and denormals do not depend on the FPU mode.
inline std::uint32_t magnitude_bits(float x) noexcept {
  return std::bit_cast<std::uint32_t>(x) & 0x7FFFFFFFu;
}
inline constexpr std::uint32_t kInfinityBits = 0x7F800000u;

/// Entries in index order, an array for each part of them.
struct EntryArrays {
  std::uint32_t* indices;
  float* values;      // v
  float* velocities;  // u; null where it is not wanted

  EntryArrays from(std::size_t at) const noexcept {
    return {indices + at, values + at, velocities == nullptr ? nullptr : velocities + at};
  }
};

/// Kernels write whole vectors: room that has to follow the entries in every array they write to.
inline constexpr std::size_t kSlack = 64;

struct Accumulate {
  const float* gradient;
  float* velocity;  // null for rules without one
  float* residual;
  std::size_t count;        // at most kKernelBlock
  float scale;              // 1/N, clipping and loss scale together
  float momentum;           // of Rule::decayed: beta
  std::uint32_t threshold;  // magnitude_bits from which an entry is a candidate; at least 1
  std::uint32_t sure;       // from which a candidate is taken out on the spot; not below threshold
  std::uint32_t first_index;
};

struct Accumulated {
  std::size_t candidates;
  std::size_t first_nonfinite;  // offset in the block, or kAllFinite
};

struct Kernels {
  const char* name;
  /// By Rule. Updates u and v in place and writes the entries that reach the threshold to `out`
  /// (room for `count`, and slack). Those that are sure leave 0 behind: in v, and in u where `out`
  /// has velocities, which not every rule has. A non-finite gradient counts as zero and is
  /// reported.
  Accumulated (*accumulate[4])(const Accumulate& block, EntryArrays out) noexcept;
  /// Writes the entries of v that reach the threshold to `out`; returns their number. `velocity` is
  /// looked at only where `out` has velocities.
  std::size_t (*collect)(const float* velocity, const float* residual, std::size_t count,
                         std::uint32_t threshold, std::uint32_t first_index,
                         EntryArrays out) noexcept;
  /// Copies the entries with a magnitude of at least `lowest`, which is 1 or more, and below
  /// `beyond`; returns their number. Where `out` has velocities, `in` has them too. `out` may be
  /// `in`.
  std::size_t (*pick)(EntryArrays in, std::size_t count, std::uint32_t lowest, std::uint32_t beyond,
                      EntryArrays out) noexcept;
  /// Adds the square of element i to lanes[i mod kNormLanes].
  void (*add_squares)(const float* values, std::size_t count, double* lanes) noexcept;
};

/// The portable table; also the reference that the others are tested against.
const Kernels& scalar_kernels() noexcept;

struct TargetKernels {
  const Kernels* kernels;
  bool supported;
};
/// Highway's tables, best first. At most `capacity` are written; returns how many there are.
std::size_t vector_kernels(TargetKernels* out, std::size_t capacity) noexcept;

/// The table in use; see active_target() in dgc/target.h. Throws Error(unsupported_target).
const Kernels& active_kernels();

}  // namespace dgc::compress
