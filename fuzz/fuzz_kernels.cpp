// Every instruction set of this machine against the portable kernels: the same bits.
#include <cmath>

#include "compress/kernels.h"
#include "support.h"

namespace {

using namespace dgc::compress;
using dgc::fuzz::Input;
using dgc::fuzz::Pattern;
using dgc::fuzz::require;

/// An array that begins off any vector boundary and ends with its allocation, where the address
/// sanitizer sees a read too far. `before` also shows writes in front of it.
struct Array {
  Array(std::size_t offset, std::size_t count) : before(offset), memory(offset + count, -1.0f) {}
  float* data() { return memory.data() + before; }
  std::span<const float> all() const { return memory; }

  std::size_t before;
  std::vector<float> memory;
};

/// Which NaN an operation yields is up to the hardware.
bool same(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b) ||
         (std::isnan(a) && std::isnan(b));
}

bool same(std::span<const float> a, std::span<const float> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](float x, float y) { return same(x, y); });
}

/// What a kernel writes entries to, with the room it asks for and no more.
struct Output {
  explicit Output(std::size_t count)
      : indices(count + kSlack), values(count + kSlack), velocities(count + kSlack) {}
  EntryArrays arrays(bool with_velocities) {
    return {indices.data(), values.data(), with_velocities ? velocities.data() : nullptr};
  }
  void keep(std::size_t count, bool with_velocities) {
    indices.resize(count);
    values.resize(count);
    velocities.resize(with_velocities ? count : 0);
  }

  std::vector<std::uint32_t> indices;
  std::vector<float> values;
  std::vector<float> velocities;
};

bool same(const Output& a, const Output& b) {
  return a.indices == b.indices && same(a.values, b.values) && same(a.velocities, b.velocities);
}

struct Result {
  Array u;
  Array v;
  Output candidates;
  std::size_t first_nonfinite = 0;
};

bool same(const Result& a, const Result& b) {
  return same(a.u.all(), b.u.all()) && same(a.v.all(), b.v.all()) &&
         a.first_nonfinite == b.first_nonfinite && same(a.candidates, b.candidates);
}

struct Case {
  Accumulate block{};  // without pointers
  Array gradient{0, 0};
  Array u{0, 0};
  Array v{0, 0};
  std::vector<double> lanes;
};

/// Layout of an input: offsets of gradient, u and v, the count and a shift that makes small ones as
/// likely as large ones, scale, momentum, threshold, first index (also how far above the threshold
/// an entry is sure), the mask; the rest are values, a third for each of the arrays.
Case make_case(Input in) {
  Case made;
  const auto gradient_offset = in.take<std::uint8_t>() % std::size_t{17};
  const auto u_offset = in.take<std::uint8_t>() % std::size_t{17};
  const auto v_offset = in.take<std::uint8_t>() % std::size_t{17};
  const auto count = in.take<std::uint16_t>() % (kKernelBlock + 1);
  made.block.count = count >> in.take<std::uint8_t>() % 8;
  made.block.scale = in.take<float>();
  made.block.momentum = in.take<float>();
  made.block.threshold = std::max(in.take<std::uint32_t>(), 1u);
  // A NaN's payload decides whether it reaches a threshold among the NaNs, and survives arithmetic
  // or not. Callers have finite factors, and no threshold there but kNoCandidates.
  if ((std::isnan(made.block.scale) || std::isnan(made.block.momentum)) &&
      made.block.threshold > kInfinityBits) {
    made.block.threshold = kNoCandidates;
  }
  made.block.first_index = in.take<std::uint32_t>();
  const std::uint32_t more = made.block.first_index;
  made.block.sure = made.block.threshold + std::min(more, kNoCandidates - made.block.threshold);
  // NaNs again: a threshold that every NaN reaches, and one that only some of them do.
  if (made.block.sure > kInfinityBits) made.block.sure = kNoCandidates;
  const auto mask = in.take<std::uint32_t>();
  std::vector<std::uint32_t> words[3];
  for (std::size_t i = 0; !in.empty(); ++i) words[i % 3].push_back(in.take<std::uint32_t>());

  made.gradient = Array(gradient_offset, made.block.count);
  made.u = Array(u_offset, made.block.count);
  made.v = Array(v_offset, made.block.count);
  const Pattern gradients(mask, std::move(words[0]));
  const Pattern velocities(mask, std::move(words[1]));
  const Pattern residuals(mask, std::move(words[2]));
  for (std::size_t i = 0; i < made.block.count; ++i) {
    made.gradient.data()[i] = gradients.any(i);
    made.u.data()[i] = velocities.finite(i);
    made.v.data()[i] = residuals.finite(i);
  }
  for (std::size_t i = 0; i < kNormLanes; ++i) {
    made.lanes.push_back(std::fabs(static_cast<double>(velocities.finite(i))));
  }
  return made;
}

Result accumulate(const Kernels& kernels, Rule rule, bool masking, const Case& made) {
  Result result{.u = made.u, .v = made.v, .candidates = Output(made.block.count)};
  Array gradient = made.gradient;
  Accumulate block = made.block;
  block.gradient = gradient.data();
  block.velocity = has_velocity(rule) ? result.u.data() : nullptr;
  block.residual = result.v.data();
  const bool with_u = masking && has_velocity(rule);
  const Accumulated done =
      kernels.accumulate[static_cast<int>(rule)](block, result.candidates.arrays(with_u));
  require(done.candidates <= block.count, "no more candidates than elements");
  result.candidates.keep(done.candidates, with_u);
  result.first_nonfinite = done.first_nonfinite;
  return result;
}

/// On the gradient, which has NaNs. Nothing is computed, so that these stay what they are.
Output collect(const Kernels& kernels, bool with_u, const Case& made) {
  Array values = made.gradient;
  Array velocities = made.u;
  Output found(made.block.count);
  const std::size_t count =
      kernels.collect(velocities.data(), values.data(), made.block.count, made.block.threshold,
                      made.block.first_index, found.arrays(with_u));
  require(count <= made.block.count, "no more candidates than elements");
  found.keep(count, with_u);
  return found;
}

/// Of what collect found.
Output pick(const Kernels& kernels, bool with_u, const Case& made, Output in) {
  const std::size_t size = in.indices.size();
  Output picked(size);
  const std::size_t count = kernels.pick(in.arrays(with_u), size, made.block.threshold,
                                         made.block.sure, picked.arrays(with_u));
  require(count <= size, "no more entries than there were");
  picked.keep(count, with_u);
  return picked;
}

std::vector<std::uint64_t> add_squares(const Kernels& kernels, const Case& made) {
  Array values = made.v;
  std::vector<double> lanes = made.lanes;
  kernels.add_squares(values.data(), made.block.count, lanes.data());
  std::vector<std::uint64_t> bits;
  for (const double lane : lanes) bits.push_back(std::bit_cast<std::uint64_t>(lane));
  return bits;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  TargetKernels tables[8];
  const std::size_t count = vector_kernels(tables, std::size(tables));
  const Case made = make_case(Input({data, size}));
  for (const Rule rule : kRules) {
    for (const bool masking : {false, true}) {
      const Result expected = accumulate(scalar_kernels(), rule, masking, made);
      for (std::size_t t = 0; t < count; ++t) {
        if (!tables[t].supported) continue;
        require(same(expected, accumulate(*tables[t].kernels, rule, masking, made)),
                "accumulate agrees");
      }
    }
  }
  for (std::size_t t = 0; t < count; ++t) {
    if (!tables[t].supported) continue;
    for (const bool with_u : {false, true}) {
      const Output found = collect(scalar_kernels(), with_u, made);
      require(same(found, collect(*tables[t].kernels, with_u, made)), "collect agrees");
      require(same(pick(scalar_kernels(), with_u, made, found),
                   pick(*tables[t].kernels, with_u, made, found)),
              "pick agrees");
    }
    require(add_squares(scalar_kernels(), made) == add_squares(*tables[t].kernels, made),
            "add_squares agrees");
  }
  return 0;
}
