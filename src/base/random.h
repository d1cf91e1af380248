// Random numbers that are the same on every machine and in every order of calls: each use names
// what it is for by numbers (seed, epoch, example), and gets a sequence of its own. The standard
// library's distributions and shuffle differ between implementations.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <numeric>
#include <utility>
#include <vector>

namespace dgc {

class Random {
 public:
  /// `names` in their order choose the sequence, e.g. {seed, epoch, index}.
  explicit Random(std::initializer_list<std::uint64_t> names) noexcept {
    for (const std::uint64_t name : names) state_ = mixed(state_ + kStep) ^ mixed(name + kStep);
  }

  /// 64 uniform bits (SplitMix64).
  std::uint64_t bits() noexcept { return mixed(state_ += kStep); }

  /// Uniform in [0, bound); bound > 0. The bias of a product of 64 bits is below 2^-32 for any
  /// bound up to 2^32.
  std::uint64_t below(std::uint64_t bound) noexcept {
    return static_cast<std::uint64_t>((static_cast<Wide>(bits()) * bound) >> 64);
  }

  /// Uniform in [0, 1), of 53 bits.
  double uniform() noexcept { return static_cast<double>(bits() >> 11) * 0x1p-53; }

  bool coin() noexcept { return (bits() >> 63) != 0; }

 private:
  __extension__ using Wide = unsigned __int128;
  static constexpr std::uint64_t kStep = 0x9e3779b97f4a7c15u;
  static std::uint64_t mixed(std::uint64_t x) noexcept {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  }
  std::uint64_t state_ = 0;
};

/// 0 … count - 1 in random order (Fisher and Yates).
inline std::vector<std::int64_t> permutation(std::int64_t count, Random random) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  return order;
}

}  // namespace dgc
