// Thresholds by histogram, by sample and carried over, and the exact trim; select.h has the scheme.
#include "compress/select.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace dgc::compress {
namespace {

// Below this size one more pass runs in cache and costs less than thinking about a sample.
constexpr std::size_t kSmallTensor = 1 << 16;

/// Lowers a threshold by a factor, in float.
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

std::uint32_t kth_largest(std::span<std::uint32_t> magnitudes, std::size_t k) noexcept {
  // Radix selection, 11 + 10 + 10 of the 31 bits: each round keeps one bucket of the last. Which
  // ones is as good as random, hence no branch on it.
  std::uint32_t prefix = 0;
  std::span<std::uint32_t> rest = magnitudes;
  for (const auto& [shift, width] :
       {std::pair{20u, 11u}, std::pair{10u, 10u}, std::pair{0u, 10u}}) {
    std::array<std::uint32_t, 2048> counts{};
    const std::uint32_t mask = (1u << width) - 1;
    for (const std::uint32_t m : rest) ++counts[(m >> shift) & mask];
    const auto bucket = static_cast<std::uint32_t>(bucket_of(counts, k));
    prefix |= bucket << shift;
    std::size_t kept = 0;
    for (const std::uint32_t m : rest) {
      rest[kept] = m;
      kept += ((m >> shift) & mask) == bucket;
    }
    rest = rest.first(kept);
  }
  return prefix;
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
    float u = source.rule == Rule::plain ? 0.0f : source.velocity[i];
    accumulate_one(source.rule, g, &u, &v, source.momentum);
    scratch.push_back(magnitude_bits(v));
  }
  const double expected =
      static_cast<double>(k) * static_cast<double>(scratch.size()) / static_cast<double>(n);
  // Two standard deviations low, so that a second pass is rarely needed.
  const auto rank = static_cast<std::size_t>(std::ceil(expected + 2.0 * std::sqrt(expected) + 1.0));
  return std::max<std::uint32_t>(1, kth_largest(scratch, std::min(rank, scratch.size())));
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
  // Half way there: sending the largest entries steepens the tail, and full steps would oscillate.
  double factor = std::pow(number(found) / number(aim(k)), 0.5 / slope);
  // Early in training magnitudes grow from step to step. Half of the average growth, because a
  // threshold that is too low costs less than one that is too high.
  const double grown = std::log(value(smallest) / value(smallest_));
  growth_ = k == k_ && std::isfinite(grown) ? 0.8 * growth_ + 0.2 * grown : 0.0;
  if (growth_ > 0.0) factor *= std::exp(0.5 * growth_);
  threshold_ = scaled(used, static_cast<float>(std::clamp(factor, 0.5, 4.0)));
  smallest_ = smallest;
  k_ = k;
  margin_ = std::max(kLeastMargin, margin_ * 0.98);
}

Trimmed trim(CandidateLists candidates, std::size_t k, std::vector<std::uint32_t>& scratch,
             std::vector<std::uint32_t>& indices, std::vector<float>& values) {
  std::size_t found = 0;
  for (const auto& list : candidates) found += list.size();
  scratch.resize(found);
  std::uint32_t* magnitude = scratch.data();
  for (const auto& list : candidates) {
    for (const Candidate& c : list) *magnitude++ = magnitude_bits(c.value);
  }
  const std::size_t count = std::min(k, found);
  if (count == 0) {
    indices.clear();
    values.clear();
    return {found, 0};
  }
  const std::uint32_t smallest = kth_largest(scratch, count);
  std::size_t above = 0;
  for (const auto& list : candidates) {
    for (const Candidate& c : list) above += magnitude_bits(c.value) > smallest;
  }
  // Room for one more, so that every candidate can be written before it is known to stay.
  indices.resize(count + 1);
  values.resize(count + 1);
  std::size_t ties = count - above;
  std::size_t out = 0;
  for (const auto& list : candidates) {
    for (const Candidate& c : list) {
      const std::uint32_t m = magnitude_bits(c.value);
      const bool tie = m == smallest && ties > 0;
      indices[out] = c.index;
      values[out] = c.value;
      ties -= tie;
      out += tie || m > smallest;
    }
  }
  indices.resize(count);
  values.resize(count);
  return {found, smallest};
}

}  // namespace dgc::compress
