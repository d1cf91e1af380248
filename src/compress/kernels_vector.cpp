// The kernels on Highway, written once and compiled for every instruction set.
//
// A pass works on four vectors at a time: one branch for "any gradient not finite", one for "any
// entry reaches the threshold". Both are rarely taken at the usual ratios. Entries that pass are
// compacted in registers, with no branch for each: so the pass runs at memory speed at every ratio.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compress/kernels_vector.cpp"
#include <hwy/foreach_target.h>
// foreach_target must come before highway.h.
#include <hwy/highway.h>

#include "compress/compact.h"
#include "compress/kernels.h"

#undef DGC_COMPACT_BY_TABLE  // defined for each instruction set anew
#define DGC_COMPACT_BY_TABLE (!HWY_HAVE_SCALABLE && (HWY_MAX_BYTES == 16 || HWY_MAX_BYTES == 32))

HWY_BEFORE_NAMESPACE();
namespace dgc::compress::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using F = hn::ScalableTag<float>;
using I = hn::RebindToSigned<F>;
using U = hn::RebindToUnsigned<F>;

template <class V>
HWY_INLINE hn::Vec<I> Magnitude(V x) {
  return hn::And(hn::BitCast(I(), x), hn::Set(I(), 0x7FFFFFFF));
}

// Thresholds above the largest int32 (kNoCandidates) can be passed by nothing.
HWY_INLINE hn::Vec<I> BelowThreshold(std::uint32_t threshold) {
  return hn::Set(I(), static_cast<std::int32_t>(HWY_MIN(threshold - 1, 0x7FFFFFFFu)));
}

/// Moves the lanes of a mask to the front.
class Compactor {
 public:
  template <class M>
  explicit HWY_INLINE Compactor(M mask) : mask_(mask), count_(hn::CountTrue(I(), mask)) {
#if DGC_COMPACT_BY_TABLE
    HWY_ALIGN std::uint8_t bytes[8] = {};
    hn::StoreMaskBits(I(), mask, bytes);
    bits_ = bytes[0];
#endif
  }

  template <class D>
  HWY_INLINE hn::Vec<D> operator()(D d, hn::Vec<D> v) const {
#if !DGC_COMPACT_BY_TABLE
    return hn::Compress(v, hn::RebindMask(d, mask_));
#elif HWY_MAX_BYTES == 32
    const auto lanes = hn::LoadU(U(), kEightLanes[bits_].data());
    return hn::TableLookupLanes(v, hn::IndicesFromVec(d, lanes));
#else
    const hn::Repartition<std::uint8_t, D> bytes;
    const auto order = hn::LoadU(bytes, kFourLanes[bits_].data());
    return hn::BitCast(d, hn::TableLookupBytes(hn::BitCast(bytes, v), order));
#endif
  }

  HWY_INLINE std::size_t count() const { return count_; }

 private:
  hn::Mask<I> mask_;
  std::size_t count_;
  std::size_t bits_ = 0;
};

/// Writes the lanes of `mask` to the end of `out`, which holds `at` entries. Returns how many it
/// has then. Whole vectors are stored, hence kSlack.
template <class M, class VI, class VF>
HWY_INLINE std::size_t Append(M mask, VI indices, VF values, VF velocities, EntryArrays out,
                              std::size_t at) {
  const F d;
  const U du;
  static_assert(hn::MaxLanes(F()) <= kSlack);
  const Compactor compact(mask);
  hn::StoreU(compact(du, indices), du, out.indices + at);
  hn::StoreU(compact(d, values), d, out.values + at);
  if (out.velocities != nullptr) hn::StoreU(compact(d, velocities), d, out.velocities + at);
  return at + compact.count();
}

/// The new velocity and residual; nothing is stored.
template <Rule kRule, class V>
HWY_INLINE void Update(V g, const float* HWY_RESTRICT u, const float* HWY_RESTRICT v, V m,
                       V& velocity, V& sum) {
  const F d;
  if constexpr (kRule == Rule::plain) {
    velocity = hn::Zero(d);
    sum = hn::Add(hn::LoadU(d, v), g);
  } else if constexpr (kRule == Rule::decayed) {
    velocity = hn::Zero(d);
    sum = hn::Add(hn::Mul(m, hn::LoadU(d, v)), g);
    sum = hn::IfThenElseZero(hn::Ge(hn::Abs(sum), hn::Set(d, FLT_MIN)), sum);
  } else {
    const V old = hn::LoadU(d, u);
    if constexpr (kRule == Rule::heavy_ball) {
      velocity = hn::Add(hn::Mul(m, old), g);
      sum = hn::Add(hn::LoadU(d, v), velocity);
    } else {
      velocity = hn::Mul(m, hn::Add(old, g));
      sum = hn::Add(hn::Add(hn::LoadU(d, v), velocity), g);
    }
    const auto normal = hn::Ge(hn::Abs(velocity), hn::Set(d, FLT_MIN));
    velocity = hn::IfThenElseZero(normal, velocity);
  }
}

template <Rule kRule, class V>
HWY_INLINE void Keep(V velocity, V sum, float* HWY_RESTRICT u, float* HWY_RESTRICT v) {
  const F d;
  if constexpr (has_velocity(kRule)) hn::StoreU(velocity, d, u);
  hn::StoreU(sum, d, v);
}

/// Stores a vector of u and v without what is sure, and appends its candidates to `out`.
template <Rule kRule, class V, class VI>
HWY_INLINE std::size_t Take(V velocity, V sum, float* HWY_RESTRICT u, float* HWY_RESTRICT v,
                            VI below, VI below_sure, std::uint32_t first, EntryArrays out,
                            std::size_t at) {
  const F d;
  const auto magnitude = Magnitude(sum);
  const auto sure = hn::RebindMask(d, hn::Gt(magnitude, below_sure));
  hn::StoreU(hn::IfThenZeroElse(sure, sum), d, v);
  if constexpr (has_velocity(kRule)) {
    const bool mask = out.velocities != nullptr;
    hn::StoreU(mask ? hn::IfThenZeroElse(sure, velocity) : velocity, d, u);
  }
  return Append(hn::Gt(magnitude, below), hn::Iota(U(), first), sum, velocity, out, at);
}

template <Rule kRule>
Accumulated AccumulateBlock(const Accumulate& block, EntryArrays out) noexcept {
  const F d;
  const I di;
  const std::size_t lanes = hn::Lanes(d);
  const auto scale = hn::Set(d, block.scale);
  const auto m = hn::Set(d, block.momentum);
  const auto below = BelowThreshold(block.threshold);
  const auto below_sure = BelowThreshold(block.sure);
  const auto largest_finite = hn::Set(di, 0x7F7FFFFF);
  const float* HWY_RESTRICT g = block.gradient;
  float* HWY_RESTRICT u = block.velocity;
  float* HWY_RESTRICT v = block.residual;
  Accumulated result{0, kAllFinite};

  // What the vector loop leaves: a group with a non-finite gradient, or the tail.
  const auto one_by_one = [&](std::size_t begin, std::size_t count) {
    Accumulate part = block;
    part.gradient += begin;
    part.velocity += has_velocity(kRule) ? begin : 0;
    part.residual += begin;
    part.count = count;
    part.first_index += static_cast<std::uint32_t>(begin);
    const Accumulated some =
        scalar_kernels().accumulate[static_cast<int>(kRule)](part, out.from(result.candidates));
    result.candidates += some.candidates;
    if (result.first_nonfinite == kAllFinite && some.first_nonfinite != kAllFinite) {
      result.first_nonfinite = begin + some.first_nonfinite;
    }
  };

  // Without momentum there is no velocity to point into.
  const auto velocity_at = [u](std::size_t at) { return has_velocity(kRule) ? u + at : nullptr; };
  std::size_t i = 0;
  for (; i + 4 * lanes <= block.count; i += 4 * lanes) {
    const std::size_t i1 = i + lanes;
    const std::size_t i2 = i1 + lanes;
    const std::size_t i3 = i2 + lanes;
    const auto g0 = hn::LoadU(d, g + i);
    const auto g1 = hn::LoadU(d, g + i1);
    const auto g2 = hn::LoadU(d, g + i2);
    const auto g3 = hn::LoadU(d, g + i3);
    const auto largest_g =
        hn::Max(hn::Max(Magnitude(g0), Magnitude(g1)), hn::Max(Magnitude(g2), Magnitude(g3)));
    if (HWY_UNLIKELY(!hn::AllFalse(di, hn::Gt(largest_g, largest_finite)))) {
      one_by_one(i, 4 * lanes);
      continue;
    }
    hn::Vec<F> u0, u1, u2, u3, v0, v1, v2, v3;
    Update<kRule>(hn::Mul(g0, scale), velocity_at(i), v + i, m, u0, v0);
    Update<kRule>(hn::Mul(g1, scale), velocity_at(i1), v + i1, m, u1, v1);
    Update<kRule>(hn::Mul(g2, scale), velocity_at(i2), v + i2, m, u2, v2);
    Update<kRule>(hn::Mul(g3, scale), velocity_at(i3), v + i3, m, u3, v3);
    const auto largest_v =
        hn::Max(hn::Max(Magnitude(v0), Magnitude(v1)), hn::Max(Magnitude(v2), Magnitude(v3)));
    if (hn::AllFalse(di, hn::Gt(largest_v, below))) {
      Keep<kRule>(u0, v0, velocity_at(i), v + i);
      Keep<kRule>(u1, v1, velocity_at(i1), v + i1);
      Keep<kRule>(u2, v2, velocity_at(i2), v + i2);
      Keep<kRule>(u3, v3, velocity_at(i3), v + i3);
      continue;
    }
    const std::uint32_t first = block.first_index + static_cast<std::uint32_t>(i);
    const auto step = static_cast<std::uint32_t>(lanes);
    std::size_t at = result.candidates;
    at = Take<kRule>(u0, v0, velocity_at(i), v + i, below, below_sure, first, out, at);
    at = Take<kRule>(u1, v1, velocity_at(i1), v + i1, below, below_sure, first + step, out, at);
    at = Take<kRule>(u2, v2, velocity_at(i2), v + i2, below, below_sure, first + 2 * step, out, at);
    at = Take<kRule>(u3, v3, velocity_at(i3), v + i3, below, below_sure, first + 3 * step, out, at);
    result.candidates = at;
  }
  if (i < block.count) one_by_one(i, block.count - i);
  return result;
}

std::size_t CollectBlock(const float* velocity, const float* residual, std::size_t count,
                         std::uint32_t threshold, std::uint32_t first_index,
                         EntryArrays out) noexcept {
  const F d;
  const std::size_t lanes = hn::Lanes(d);
  const auto below = BelowThreshold(threshold);
  const bool wanted = out.velocities != nullptr;
  std::size_t found = 0;
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto v = hn::LoadU(d, residual + i);
    const auto mask = hn::Gt(Magnitude(v), below);
    if (hn::AllFalse(I(), mask)) continue;
    const auto u = wanted ? hn::LoadU(d, velocity + i) : hn::Zero(d);
    const auto indices = hn::Iota(U(), first_index + static_cast<std::uint32_t>(i));
    found = Append(mask, indices, v, u, out, found);
  }
  return found + scalar_kernels().collect(wanted ? velocity + i : nullptr, residual + i, count - i,
                                          threshold, first_index + static_cast<std::uint32_t>(i),
                                          out.from(found));
}

std::size_t PickBlock(EntryArrays in, std::size_t count, std::uint32_t lowest, std::uint32_t beyond,
                      EntryArrays out) noexcept {
  const F d;
  const U du;
  const std::size_t lanes = hn::Lanes(d);
  const auto below_lowest = BelowThreshold(lowest);
  const auto below_beyond = BelowThreshold(beyond);
  const bool wanted = out.velocities != nullptr;
  std::size_t found = 0;
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto v = hn::LoadU(d, in.values + i);
    const auto magnitude = Magnitude(v);
    const auto mask = hn::AndNot(hn::Gt(magnitude, below_beyond), hn::Gt(magnitude, below_lowest));
    const auto u = wanted ? hn::LoadU(d, in.velocities + i) : hn::Zero(d);
    found = Append(mask, hn::LoadU(du, in.indices + i), v, u, out, found);
  }
  return found + scalar_kernels().pick(in.from(i), count - i, lowest, beyond, out.from(found));
}

void AddSquares(const float* values, std::size_t count, double* lanes) noexcept {
#if HWY_HAVE_SCALABLE || !HWY_HAVE_FLOAT64
  scalar_kernels().add_squares(values, count, lanes);
#else
  // The square of a float is exact in double, so only the order of additions matters.
  using D = hn::CappedTag<double, kNormLanes>;
  const D d;
  const hn::Rebind<float, D> narrow;
  constexpr std::size_t kWidth = hn::MaxLanes(D());
  hn::Vec<D> sums[kNormLanes / kWidth];
  for (std::size_t j = 0; j < kNormLanes / kWidth; ++j) sums[j] = hn::LoadU(d, lanes + j * kWidth);
  std::size_t i = 0;
  for (; i + kNormLanes <= count; i += kNormLanes) {
    for (std::size_t j = 0; j < kNormLanes / kWidth; ++j) {
      const auto x = hn::PromoteTo(d, hn::LoadU(narrow, values + i + j * kWidth));
      sums[j] = hn::Add(sums[j], hn::Mul(x, x));
    }
  }
  for (std::size_t j = 0; j < kNormLanes / kWidth; ++j) hn::StoreU(sums[j], d, lanes + j * kWidth);
  scalar_kernels().add_squares(values + i, count - i, lanes);
#endif
}

const Kernels* Table() noexcept {
  static constexpr const char* kName =
#if HWY_TARGET == HWY_SSSE3
      "ssse3";
#elif HWY_TARGET == HWY_SSE4
      "sse4";
#elif HWY_TARGET == HWY_AVX2
      "avx2";
#elif HWY_TARGET == HWY_AVX3
      "avx512";
#elif HWY_TARGET == HWY_NEON
      "neon";
#else
      "baseline";
#endif
  static constexpr Kernels kTable{kName,
                                  {AccumulateBlock<Rule::plain>, AccumulateBlock<Rule::heavy_ball>,
                                   AccumulateBlock<Rule::nesterov>, AccumulateBlock<Rule::decayed>},
                                  CollectBlock,
                                  PickBlock,
                                  AddSquares};
  return &kTable;
}

}  // namespace dgc::compress::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dgc::compress {

std::size_t vector_kernels(TargetKernels* out, std::size_t capacity) noexcept {
  using Getter = const Kernels* (*)() noexcept;
  struct Entry {
    std::int64_t target;
    Getter getter;
  };
  // HWY_CHOOSE_X is null where X is not compiled. The choice is ours and not Highway's process-wide
  // one, so that DGC_TARGET concerns dgc alone.
  const Entry entries[] = {
#if HWY_ARCH_X86
    {HWY_AVX3, HWY_CHOOSE_AVX3(Table)},
    {HWY_AVX2, HWY_CHOOSE_AVX2(Table)},
    {HWY_SSE4, HWY_CHOOSE_SSE4(Table)},
    {HWY_SSSE3, HWY_CHOOSE_SSSE3(Table)},
#elif HWY_ARCH_ARM
    {HWY_NEON, HWY_CHOOSE_NEON(Table)},
#else
    {HWY_STATIC_TARGET, HWY_STATIC_DISPATCH(Table)},
#endif
  };
  const std::int64_t supported = hwy::SupportedTargets();
  std::size_t count = 0;
  for (const Entry& entry : entries) {
    if (entry.getter == nullptr || count == capacity) continue;
    out[count++] = {entry.getter(), (supported & entry.target) != 0};
  }
  return count;
}

}  // namespace dgc::compress
#endif
