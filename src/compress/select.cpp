// Thresholds by histogram, by sample and carried over, and the exact trim; select.h has the scheme.
#include "compress/select.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace dgc::compress {
namespace {

// Below this size one more pass runs in cache and costs less than thinking about a sample.
constexpr std::size_t kSmallTensor = 1 << 16;

/// A threshold times a factor, in float.
std::uint32_t scaled(std::uint32_t threshold, float factor) noexcept {
  return std::max<std::uint32_t>(1, magnitude_bits(std::bit_cast<float>(threshold) * factor));
}

/// Walks a histogram from its largest bucket down to where `k` entries are reached. Returns that
/// bucket and leaves in `k` how many of its entries are still needed.
std::size_t bucket_of(std::span<const std::uint32_t> counts, std::size_t& k) noexcept {
  std::size_t bucket = counts.size();
  while (bucket-- > 0) {
    if (counts[bucket] >= k) return bucket;
    k -= counts[bucket];
  }
  return counts.size();
}

std::uint64_t mixed(std::uint64_t x) noexcept {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

}  // namespace

KthLargest kth_largest(std::span<std::uint32_t> magnitudes, std::size_t k) noexcept {
  // Radix selection: each round spreads the range that is left over all buckets and keeps one of
  // them. Which entries that keeps is as good as random, hence no branch on it.
  constexpr unsigned kBucketBits = 11;
  std::span<std::uint32_t> rest = magnitudes;
  std::uint32_t least = 0xFFFFFFFFu;
  std::uint32_t most = 0;
  for (const std::uint32_t m : rest) {
    least = std::min(least, m);
    most = std::max(most, m);
  }
  while (least != most) {
    const auto width = static_cast<unsigned>(std::bit_width(most - least));
    const unsigned shift = width > kBucketBits ? width - kBucketBits : 0;
    std::array<std::uint32_t, 1u << kBucketBits> counts{};
    for (const std::uint32_t m : rest) ++counts[(m - least) >> shift];
    const auto bucket = static_cast<std::uint32_t>(bucket_of(counts, k));
    std::size_t kept = 0;
    for (const std::uint32_t m : rest) {
      rest[kept] = m;
      kept += (m - least) >> shift == bucket;
    }
    rest = rest.first(kept);
    least += bucket << shift;
    most = std::min(most, least + ((1u << shift) - 1));
  }
  return {least, k, rest.size()};
}

std::uint32_t exact_threshold(std::span<const float> v, std::size_t k,
                              std::vector<std::uint32_t>& histogram) {
  // Upper 16 of the 31 magnitude bits: 256 KiB of counters stay in L2.
  constexpr unsigned kLowBits = 15;
  histogram.assign(std::size_t{1} << 16, 0);
  for (const float x : v) ++histogram[magnitude_bits(x) >> kLowBits];
  // Zeros are never sent: where only they are left, every non-zero entry is wanted.
  std::uint32_t zeros = 0;
  if (histogram[0] > 0) {
    zeros = static_cast<std::uint32_t>(
        std::count_if(v.begin(), v.end(), [](float x) { return magnitude_bits(x) == 0; }));
  }
  if (v.size() - zeros <= k) return 1;
  std::size_t wanted = k;
  const auto bucket = static_cast<std::uint32_t>(bucket_of(histogram, wanted));
  const std::size_t surplus = histogram[bucket] - wanted;
  const std::uint32_t base = bucket << kLowBits;
  if (surplus <= k / 2 + 256 && base > 0) return base;
  // A crowded bucket (ties, narrow distributions): count its low bits too.
  histogram.assign(std::size_t{1} << kLowBits, 0);
  for (const float x : v) {
    const std::uint32_t m = magnitude_bits(x);
    if (m >> kLowBits == bucket) ++histogram[m & ((1u << kLowBits) - 1)];
  }
  return std::max<std::uint32_t>(1,
                                 base | static_cast<std::uint32_t>(bucket_of(histogram, wanted)));
}

std::uint32_t sampled_threshold(const SampleSource& source, std::size_t k,
                                std::vector<std::uint32_t>& scratch) {
  const std::size_t n = source.residual.size();
  // 1 % of the tensor (the paper's upper figure), and enough to hold 16 of the entries sought.
  const std::size_t samples = std::max(n / 100, 16 * n / std::max<std::size_t>(k, 1));
  if (n <= kSmallTensor || samples > n / 4) return kNoCandidates;
  // One position in each stratum: as even as a strided sample, but blind to periods such as rows.
  const std::size_t stride = n / samples;
  scratch.clear();
  for (std::size_t begin = 0; begin + stride <= n; begin += stride) {
    const std::size_t i = begin + mixed(source.seed ^ begin) % stride;
    float g = source.gradient[i];
    if (magnitude_bits(g) >= kInfinityBits) g = 0.0f;
    g *= source.scale;
    float v = source.residual[i];
    float u = has_velocity(source.rule) ? source.velocity[i] : 0.0f;
    accumulate_one(source.rule, g, &u, &v, source.momentum);
    scratch.push_back(magnitude_bits(v));
  }
  const double expected =
      static_cast<double>(k) * static_cast<double>(scratch.size()) / static_cast<double>(n);
  // Two standard deviations low, so that a second pass is rarely needed.
  const auto rank = static_cast<std::size_t>(std::ceil(expected + 2.0 * std::sqrt(expected) + 1.0));
  return std::max<std::uint32_t>(1, kth_largest(scratch, std::min(rank, scratch.size())).magnitude);
}

std::uint32_t CarriedThreshold::guess(std::size_t k) const noexcept {
  // After a change of ratio (warm-up) the old threshold says nothing.
  return k == k_ ? threshold_ : kNoCandidates;
}

std::size_t CarriedThreshold::aim(std::size_t k) const noexcept {
  // Counts scatter by the square root of k, which matters where k is small.
  const auto count = static_cast<double>(k);
  return static_cast<std::size_t>(count * margin_ + 4.0 * std::sqrt(count) + 4.0);
}

std::uint32_t CarriedThreshold::sure(std::size_t k) const noexcept {
  if (k != k_ || smallest_ == 0) return kNoCandidates;
  const double count_scatter = 2.0 / std::sqrt(static_cast<double>(k));
  const double expected = std::max(growth_, 0.0) + 1.5 * deviation_;
  const double above = expected + (doubt_ + count_scatter) / slope_;
  return scaled(smallest_, static_cast<float>(std::exp(std::min(above, 4.0))));
}

void CarriedThreshold::was_too_sure() noexcept { doubt_ = std::min(doubt_ * 2.0, kMostDoubt); }

void CarriedThreshold::fell_short() noexcept { margin_ = std::min(margin_ * 1.5, kMostMargin); }

void CarriedThreshold::update(std::size_t found, std::size_t k, std::uint32_t smallest,
                              std::uint32_t used) noexcept {
  // Along count ~ threshold^-slope, with the slope seen between `smallest` and `used`: exact where
  // the aim lies between them, an extrapolation within sensible slopes otherwise.
  const auto number = [](std::size_t x) {
    return static_cast<double>(std::max<std::size_t>(x, 1));
  };
  const auto value = [](std::uint32_t bits) {
    return static_cast<double>(std::bit_cast<float>(bits));
  };
  const double distance = std::log(value(smallest) / value(used));
  double slope = std::log(number(found) / number(k)) / distance;
  slope = std::isfinite(slope) ? std::clamp(slope, 2.0, 20.0) : 8.0;
  slope_ = slope;
  // Half way there: sending the largest entries steepens the tail, and full steps would oscillate.
  double factor = std::pow(number(found) / number(aim(k)), 0.5 / slope);
  // Early in training magnitudes grow from step to step. Half of the average growth, because a
  // threshold that is too low costs less than one that is too high.
  const double grown = std::log(value(smallest) / value(smallest_));
  const bool known = k == k_ && std::isfinite(grown);
  deviation_ = known ? 0.8 * deviation_ + 0.2 * std::fabs(grown - growth_) : 0.0;
  growth_ = known ? 0.8 * growth_ + 0.2 * grown : 0.0;
  if (growth_ > 0.0) factor *= std::exp(0.5 * growth_);
  threshold_ = scaled(used, static_cast<float>(std::clamp(factor, 0.5, 4.0)));
  smallest_ = smallest;
  k_ = k;
  // Slowly: what falls short costs a pass, and then does so once in a hundred steps at most.
  margin_ = std::max(kLeastMargin, margin_ * 0.995);
  doubt_ = std::max(kLeastDoubt, doubt_ * 0.95);
}

namespace {

/// The same of the values of a list, most of which are only counted: copying them all and ordering
/// the copies would take three times as long.
KthLargest kth_of_list(const Kernels& kernels, const CandidateList& list, std::size_t k,
                       TrimScratch& scratch) {
  constexpr unsigned kBucketBits = 11;
  const EntryArrays all = list.entries();
  // Signed, because compilers find extremes of those in vectors everywhere.
  std::int32_t least = 0x7FFFFFFF;
  std::int32_t most = 0;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const auto m = static_cast<std::int32_t>(magnitude_bits(all.values[i]));
    least = std::min(least, m);
    most = std::max(most, m);
  }
  const auto base = static_cast<std::uint32_t>(least);
  const auto width =
      static_cast<unsigned>(std::bit_width(static_cast<std::uint32_t>(most - least)));
  const unsigned shift = width > kBucketBits ? width - kBucketBits : 0;
  std::array<std::uint32_t, 1u << kBucketBits> counts{};
  for (std::size_t i = 0; i < list.size(); ++i)
    ++counts[(magnitude_bits(all.values[i]) - base) >> shift];
  const auto bucket = static_cast<std::uint32_t>(bucket_of(counts, k));
  const std::uint32_t lowest = base + (bucket << shift);
  scratch.bucket.clear();
  EntryArrays few = scratch.bucket.room_for(list.size());
  few.velocities = nullptr;
  const std::size_t count =
      kernels.pick(all, list.size(), lowest, lowest + (std::uint32_t{1} << shift), few);
  scratch.magnitudes.resize(count);
  for (std::size_t i = 0; i < count; ++i) scratch.magnitudes[i] = magnitude_bits(few.values[i]);
  return kth_largest(scratch.magnitudes, k);
}

/// Where the k-th largest is one of several alike: only the first `ties` of them stay.
void drop_ties(std::span<CandidateList> candidates, std::uint32_t magnitude,
               std::size_t ties) noexcept {
  for (CandidateList& list : candidates) {
    const EntryArrays all = list.entries();
    std::size_t kept = 0;
    for (std::size_t i = 0; i < list.size(); ++i) {
      const bool tie = magnitude_bits(all.values[i]) == magnitude;
      if (tie && ties == 0) continue;
      ties -= tie;
      all.indices[kept] = all.indices[i];
      all.values[kept] = all.values[i];
      all.velocities[kept] = all.velocities[i];
      ++kept;
    }
    list.keep(kept);
  }
}

}  // namespace

Trimmed trim(const Kernels& kernels, std::span<CandidateList> candidates, std::size_t k,
             std::uint32_t sure, TrimScratch& scratch) {
  std::size_t found = 0;
  CandidateList& doubtful = scratch.doubtful;
  doubtful.clear();
  for (const CandidateList& list : candidates) {
    EntryArrays to = doubtful.room_for(list.size());
    to.velocities = nullptr;
    doubtful.added(kernels.pick(list.entries(), list.size(), 1, sure, to));
    found += list.size();
  }
  const std::size_t count = std::min(k, found);
  if (count == 0) return {found, 0, 0, false};
  const std::size_t certain = found - doubtful.size();
  if (certain >= count) return {found, 0, 0, true};
  const KthLargest kth = kth_of_list(kernels, doubtful, count - certain, scratch);
  if (kth.ties < kth.equal) {
    drop_ties(candidates, kth.magnitude, kth.ties);
    drop_ties({&doubtful, 1}, kth.magnitude, kth.ties);
  }
  EntryArrays few = doubtful.entries();
  few.velocities = nullptr;
  doubtful.keep(kernels.pick(few, doubtful.size(), kth.magnitude, kNoCandidates, few));
  return {found, count, kth.magnitude, false};
}

void gather(const Kernels& kernels, CandidateLists candidates, const Trimmed& trimmed,
            bool with_velocities, SelectedEntries& out) {
  out.resize(trimmed.selected + kSlack, with_velocities);
  const EntryArrays all = out.arrays();
  std::size_t at = 0;
  for (const CandidateList& list : candidates) {
    if (list.size() == 0) continue;
    at += kernels.pick(list.entries(), list.size(), trimmed.smallest, kNoCandidates, all.from(at));
  }
  out.resize(trimmed.selected, with_velocities);
}

}  // namespace dgc::compress
