// Gaps, quotients and codes of whole blocks: portably, and on Highway where vectors are 32 bytes or
// more and have shifts by lane. rice.h has the scheme.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "wire/rice_vector.cpp"
#include <hwy/foreach_target.h>
// foreach_target must come before highway.h.
#include <hwy/highway.h>

#include <algorithm>
#include <cstdlib>

#include "wire/rice.h"

HWY_BEFORE_NAMESPACE();
namespace dgc::wire::HWY_NAMESPACE {

#if !HWY_HAVE_SCALABLE && (HWY_MAX_BYTES == 32 || HWY_MAX_BYTES == 64)

namespace hn = hwy::HWY_NAMESPACE;

using U = hn::ScalableTag<std::uint32_t>;
using W = hn::RepartitionToWide<U>;
constexpr std::size_t kLanes = hn::MaxLanes(U());
constexpr std::size_t kWords = hn::MaxLanes(W());
static_assert(kBlock % (8 * kLanes) == 0);

std::uint32_t Gaps(const std::uint32_t* HWY_RESTRICT positions, std::uint32_t next,
                   std::uint32_t* HWY_RESTRICT out) noexcept {
  const U d;
  const auto one = hn::Set(d, 1);
  HWY_ALIGN std::uint32_t first[kLanes];  // the neighbours of the first vector
  first[0] = next - 1;
  std::copy_n(positions, kLanes - 1, first + 1);
  auto gaps = hn::Sub(hn::Sub(hn::LoadU(d, positions), hn::Load(d, first)), one);
  auto any = gaps;
  hn::StoreU(gaps, d, out);
  for (std::size_t i = kLanes; i < kBlock; i += kLanes) {
    gaps = hn::Sub(hn::LoadU(d, positions + i), hn::LoadU(d, positions + i - 1));
    gaps = hn::Sub(gaps, one);
    any = hn::Or(any, gaps);
    hn::StoreU(gaps, d, out + i);
  }
  HWY_ALIGN std::uint32_t lanes[kLanes];
  hn::Store(any, d, lanes);
  std::uint32_t all = 0;
  for (const std::uint32_t lane : lanes) all |= lane;
  return all;
}

std::uint32_t Quotients(const std::uint32_t* HWY_RESTRICT gaps, unsigned b) noexcept {
  const U d;
  const int shift = static_cast<int>(b);
  auto even = hn::Zero(d);
  auto odd = hn::Zero(d);
  for (std::size_t i = 0; i < kBlock; i += 2 * kLanes) {
    even = hn::Add(even, hn::ShiftRightSame(hn::LoadU(d, gaps + i), shift));
    odd = hn::Add(odd, hn::ShiftRightSame(hn::LoadU(d, gaps + i + kLanes), shift));
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(even, odd)));
}

/// Joins neighbours: `count` words become half as many, the widest of which is returned. `to` may
/// be `from`.
std::uint64_t Halve(const JoinedCodes& from, std::size_t count, JoinedCodes& to) {
  const W d;
  auto widest = hn::Zero(d);
  for (std::size_t i = 0; i < count; i += 2 * kWords) {
    const auto low_bits = hn::LoadU(d, from.bits.data() + i);
    const auto high_bits = hn::LoadU(d, from.bits.data() + i + kWords);
    const auto low_widths = hn::LoadU(d, from.widths.data() + i);
    const auto high_widths = hn::LoadU(d, from.widths.data() + i + kWords);
    const auto first_widths = hn::ConcatEven(d, high_widths, low_widths);
    const auto second = hn::Shl(hn::ConcatOdd(d, high_bits, low_bits), first_widths);
    const auto widths = hn::Add(first_widths, hn::ConcatOdd(d, high_widths, low_widths));
    hn::StoreU(hn::Or(hn::ConcatEven(d, high_bits, low_bits), second), d, to.bits.data() + i / 2);
    hn::StoreU(widths, d, to.widths.data() + i / 2);
    widest = hn::Or(widest, widths);  // at least the largest of them
  }
  HWY_ALIGN std::uint64_t lanes[kWords];
  hn::Store(widest, d, lanes);
  std::uint64_t all = 0;
  for (const std::uint64_t lane : lanes) all |= lane;
  return all;
}

std::size_t Join(const std::uint32_t* HWY_RESTRICT gaps, unsigned b, JoinedCodes& out) noexcept {
  const U d;
  const W dw;
  const auto one = hn::Set(d, 1);
  const auto low_mask = hn::Set(d, (std::uint32_t{1} << b) - 1);
  const auto fixed = hn::Set(d, b + 1);
  const auto low_half = hn::Set(dw, 0xFFFFFFFFu);
  JoinedCodes pairs;
  for (std::size_t i = 0; i < kBlock; i += kLanes) {
    const auto gap = hn::LoadU(d, gaps + i);
    const auto quotient = hn::ShiftRightSame(gap, static_cast<int>(b));
    const auto low = hn::And(gap, low_mask);
    const auto codes =
        hn::BitCast(dw, hn::Sub(hn::Shl(hn::Add(hn::Add(low, low), one), quotient), one));
    const auto widths = hn::BitCast(dw, hn::Add(quotient, fixed));
    const auto first_width = hn::And(widths, low_half);
    const auto second = hn::Shl(hn::ShiftRight<32>(codes), first_width);
    hn::StoreU(hn::Or(hn::And(codes, low_half), second), dw, pairs.bits.data() + i / 2);
    hn::StoreU(hn::Add(first_width, hn::ShiftRight<32>(widths)), dw, pairs.widths.data() + i / 2);
  }
  constexpr std::uint64_t kMost = 56;
  JoinedCodes fours;
  if (Halve(pairs, kBlock / 2, fours) > kMost) {
    out = pairs;
    return kBlock / 2;
  }
  if (Halve(fours, kBlock / 4, out) <= kMost) return kBlock / 8;
  std::copy_n(fours.bits.data(), kBlock / 4, out.bits.data());
  std::copy_n(fours.widths.data(), kBlock / 4, out.widths.data());
  return kBlock / 4;
}

const RiceKernels* Table() noexcept {
  static constexpr RiceKernels kTable{Gaps, Quotients, Join};
  return &kTable;
}

#else

const RiceKernels* Table() noexcept { return &scalar_rice_kernels(); }

#endif

}  // namespace dgc::wire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dgc::wire {
namespace {

struct Code {
  std::uint64_t bits;
  unsigned width;
};
/// Of a gap that is not escaped.
Code code_of(std::uint32_t gap, unsigned b) noexcept {
  const unsigned quotient = gap >> b;
  const std::uint64_t low = gap & ((std::uint32_t{1} << b) - 1);
  return {((2 * low + 1) << quotient) - 1, quotient + 1 + b};
}

Code joined(const Code& first, const Code& second) noexcept {
  return {first.bits | second.bits << first.width, first.width + second.width};
}

std::uint32_t scalar_gaps(const std::uint32_t* positions, std::uint32_t next,
                          std::uint32_t* out) noexcept {
  std::uint32_t any = out[0] = positions[0] - next;
  for (std::size_t i = 1; i < kBlock; ++i) {
    out[i] = positions[i] - positions[i - 1] - 1;
    any |= out[i];
  }
  return any;
}

std::uint32_t scalar_quotients(const std::uint32_t* gaps, unsigned b) noexcept {
  std::uint32_t total = 0;
  for (std::size_t i = 0; i < kBlock; ++i) total += gaps[i] >> b;
  return total;
}

std::size_t scalar_join(const std::uint32_t* gaps, unsigned b, JoinedCodes& out) noexcept {
  std::uint32_t any = 0;
  for (std::size_t i = 0; i < kBlock; ++i) any |= gaps[i];
  std::size_t words = 0;
  const auto put = [&](const Code& code) {
    out.bits[words] = code.bits;
    out.widths[words++] = code.width;
  };
  // Four codes of at most 14 bits fit a word, or two of at most 28.
  const bool four = (any >> b) + 1 + b <= 14;
  for (std::size_t i = 0; i < kBlock; i += four ? 4 : 2) {
    const Code first = joined(code_of(gaps[i], b), code_of(gaps[i + 1], b));
    put(four ? joined(first, joined(code_of(gaps[i + 2], b), code_of(gaps[i + 3], b))) : first);
  }
  return words;
}

}  // namespace

const RiceKernels& scalar_rice_kernels() noexcept {
  static constexpr RiceKernels kTable{scalar_gaps, scalar_quotients, scalar_join};
  return kTable;
}

namespace {

struct Entry {
  std::string_view name;
  std::int64_t target;
  const RiceKernels* (*table)() noexcept;
};
// HWY_CHOOSE_X is null where X is not compiled. Best first.
const std::array kEntries = {
#if HWY_ARCH_X86
    Entry{"avx512", HWY_AVX3, HWY_CHOOSE_AVX3(Table)},
    Entry{"avx2", HWY_AVX2, HWY_CHOOSE_AVX2(Table)},
#endif
    Entry{"scalar", 0, nullptr}};

}  // namespace

const RiceKernels& rice_kernels(std::string_view target) noexcept {
  for (const Entry& entry : kEntries) {
    if (entry.name == target && entry.table != nullptr) return *entry.table();
  }
  return scalar_rice_kernels();
}

const RiceKernels& rice_kernels() noexcept {
  // Asking the processor takes microseconds on virtual machines.
  static const std::int64_t supported = hwy::SupportedTargets();
  const char* const wanted = std::getenv("DGC_TARGET");
  for (const Entry& entry : kEntries) {
    if ((supported & entry.target) == 0 || entry.table == nullptr) continue;
    if (wanted == nullptr || entry.name == wanted) return *entry.table();
  }
  return scalar_rice_kernels();
}

}  // namespace dgc::wire
#endif
