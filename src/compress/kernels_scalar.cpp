// The passes written plainly: what every other instruction set is compared with.
#include "compress/kernels.h"

namespace dgc::compress {
namespace {

void put(EntryArrays out, std::size_t at, std::uint32_t index, float value,
         const float* velocity) noexcept {
  out.indices[at] = index;
  out.values[at] = value;
  if (out.velocities != nullptr) out.velocities[at] = *velocity;
}

template <Rule kRule>
Accumulated accumulate(const Accumulate& block, EntryArrays out) noexcept {
  Accumulated result{0, kAllFinite};
  for (std::size_t i = 0; i < block.count; ++i) {
    float g = block.gradient[i];
    if (magnitude_bits(g) >= kInfinityBits) {
      if (result.first_nonfinite == kAllFinite) result.first_nonfinite = i;
      g = 0.0f;
    }
    float* const u = has_velocity(kRule) ? block.velocity + i : nullptr;
    const float v = accumulate_one<kRule>(g * block.scale, u, block.residual + i, block.momentum);
    if (magnitude_bits(v) < block.threshold) continue;
    put(out, result.candidates++, block.first_index + static_cast<std::uint32_t>(i), v, u);
    if (magnitude_bits(v) < block.sure) continue;
    block.residual[i] = 0.0f;
    if (out.velocities != nullptr) *u = 0.0f;
  }
  return result;
}

std::size_t collect(const float* velocity, const float* residual, std::size_t count,
                    std::uint32_t threshold, std::uint32_t first_index, EntryArrays out) noexcept {
  std::size_t found = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (magnitude_bits(residual[i]) < threshold) continue;
    put(out, found++, first_index + static_cast<std::uint32_t>(i), residual[i],
        out.velocities == nullptr ? nullptr : velocity + i);
  }
  return found;
}

std::size_t pick(EntryArrays in, std::size_t count, std::uint32_t lowest, std::uint32_t beyond,
                 EntryArrays out) noexcept {
  std::size_t found = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t m = magnitude_bits(in.values[i]);
    if (m < lowest || m >= beyond) continue;
    put(out, found++, in.indices[i], in.values[i],
        out.velocities == nullptr ? nullptr : in.velocities + i);
  }
  return found;
}

void add_squares(const float* values, std::size_t count, double* lanes) noexcept {
  for (std::size_t i = 0; i < count; ++i) {
    const double x = values[i];
    lanes[i % kNormLanes] += x * x;
  }
}

constexpr Kernels kTable{"scalar",
                         {accumulate<Rule::plain>, accumulate<Rule::heavy_ball>,
                          accumulate<Rule::nesterov>, accumulate<Rule::decayed>},
                         collect,
                         pick,
                         add_squares};

}  // namespace

const Kernels& scalar_kernels() noexcept { return kTable; }

void accumulate(Rule rule, std::span<const float> gradient, std::span<float> velocity,
                std::span<float> residual, float scale, float momentum) noexcept {
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    float* const u = has_velocity(rule) ? &velocity[i] : nullptr;
    accumulate_one(rule, gradient[i] * scale, u, &residual[i], momentum);
  }
}

}  // namespace dgc::compress
