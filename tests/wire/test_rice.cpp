// Rice codes against the plainest writing and reading of docs/format.md, "Rice".
#include "wire/rice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <utility>

#include "dgc/target.h"
#include "wire/values.h"

namespace dgc::wire {
namespace {

using Bits = std::vector<bool>;

std::vector<std::uint32_t> gaps_of(const std::vector<std::uint32_t>& indices) {
  std::vector<std::uint32_t> gaps;
  std::uint32_t next = 0;
  for (const std::uint32_t index : indices) {
    gaps.push_back(index - next);
    next = index + 1;
  }
  return gaps;
}

void put(Bits& bits, std::uint64_t value, unsigned width) {
  for (unsigned i = 0; i < width; ++i) bits.push_back((value >> i & 1) != 0);
}

void put_gap(Bits& bits, std::uint32_t gap, unsigned b) {
  const std::uint32_t quotient = gap >> b;
  for (std::uint32_t i = 0; i < std::min(quotient, kRiceEscape); ++i) bits.push_back(true);
  if (quotient >= kRiceEscape) {
    put(bits, gap, 32);
  } else {
    bits.push_back(false);
    put(bits, gap, b);
  }
}

std::vector<std::byte> bytes_of(const Bits& bits) {
  std::vector<std::byte> bytes((bits.size() + 7) / 8);
  for (std::size_t i = 0; i < bits.size(); ++i) {
    if (bits[i]) bytes[i / 8] |= std::byte{1} << (i % 8);
  }
  return bytes;
}

/// With the parameters given, one bit after the other.
Bits plain(const std::vector<std::uint32_t>& indices, const std::vector<std::uint8_t>& parameters) {
  Bits bits;
  const std::vector<std::uint32_t> gaps = gaps_of(indices);
  for (std::size_t i = 0; i < gaps.size(); ++i) {
    const unsigned b = parameters[i / kBlock];
    if (i % kBlock == 0) put(bits, b, kRiceParameterBits);
    put_gap(bits, gaps[i], b);
  }
  return bits;
}

std::vector<std::uint32_t> read(const std::vector<std::byte>& section, std::size_t count,
                                std::uint64_t elements, ErrorCode& result) {
  RiceReader reader(section, elements);
  RiceReader skipping(section, elements);
  std::vector<std::uint32_t> positions(count);
  for (std::size_t begin = 0; begin < count; begin += kBlock) {
    const std::size_t some = std::min(kBlock, count - begin);
    result = reader.next_block(some, positions.data() + begin);
    EXPECT_EQ(skipping.skip_block(some), result);
    if (result != ErrorCode::ok) return {};
  }
  result = reader.finish();
  EXPECT_EQ(skipping.finish(), result);
  return positions;
}

/// Positions with gaps of about `mean`; one in `rare` is up to a million.
std::vector<std::uint32_t> draw(std::size_t count, double mean, std::uint32_t rare,
                                std::mt19937& random) {
  std::exponential_distribution<double> gap(1.0 / std::max(mean, 1e-3));
  std::vector<std::uint32_t> indices;
  std::uint32_t next = 0;
  for (std::size_t i = 0; i < count; ++i) {
    next += static_cast<std::uint32_t>(gap(random));
    if (rare != 0 && random() % rare == 0) next += static_cast<std::uint32_t>(random() % 1'000'000);
    indices.push_back(next++);
  }
  return indices;
}

TEST(Rice, WritesAndReadsTheBitsOfTheFormatForAnyGaps) {
  std::mt19937 random(1);
  for (const std::size_t count : {1, 2, 7, 255, 256, 257, 511, 512, 513, 769, 2000}) {
    for (const double mean : {0.0, 0.7, 3.0, 15.0, 60.0, 1000.0, 20000.0}) {
      for (const std::uint32_t rare : {0u, 300u, 3u}) {
        SCOPED_TRACE(std::to_string(count) + " " + std::to_string(mean) + " " +
                     std::to_string(rare));
        const std::vector<std::uint32_t> indices = draw(count, mean, rare, random);
        const RicePlan plan = plan_rice(indices);
        const Bits expected = plain(indices, plan.parameters);
        ASSERT_EQ(plan.bits, expected.size());
        // Nothing is written past the end.
        std::vector<std::byte> out(plan.bytes() + 16, std::byte{0xA5});
        ASSERT_EQ(encode_rice(plan, indices, out.data()), out.data() + plan.bytes());
        EXPECT_TRUE(std::all_of(out.end() - 16, out.end(),
                                [](std::byte byte) { return byte == std::byte{0xA5}; }));
        out.resize(plan.bytes());
        ASSERT_EQ(out, bytes_of(expected));
        ErrorCode result = ErrorCode::ok;
        ASSERT_EQ(read(out, count, indices.back() + 1u, result), indices);
        EXPECT_EQ(result, ErrorCode::ok);
        read(out, count, indices.back(), result);
        EXPECT_EQ(result, ErrorCode::index_out_of_range);
        out.push_back(std::byte{0});
        read(out, count, indices.back() + 1u, result);
        EXPECT_EQ(result, ErrorCode::trailing_bytes);
      }
    }
  }
}

/// A copy of each table that this machine can run, with its name.
std::vector<std::pair<std::string, const RiceKernels*>> tables() {
  std::vector<std::pair<std::string, const RiceKernels*>> all;
  for (const Target& target : targets()) {
    if (target.supported) all.emplace_back(target.name, &rice_kernels(target.name));
  }
  return all;
}

// Block by block, by every instruction set: the same bits, and none where the room ends.
TEST(Rice, EncodesBlockByBlockWhatAPlanGives) {
  std::mt19937 random(4);
  for (const std::size_t count : {1, 255, 256, 257, 512, 513, 1024, 5000}) {
    for (const double mean : {0.0, 0.7, 3.0, 15.0, 60.0, 1000.0, 20000.0, 200000.0}) {
      for (const std::uint32_t rare : {0u, 300u, 3u}) {
        if (rare == 3 && count > 1024) continue;  // would not fit 32 bits
        const std::vector<std::uint32_t> indices = draw(count, mean, rare, random);
        const RicePlan plan = plan_rice(indices);
        std::vector<std::byte> expected(plan.bytes());
        encode_rice(plan, indices, expected.data());
        for (const auto& [name, kernels] : tables()) {
          SCOPED_TRACE(name + " " + std::to_string(count) + " " + std::to_string(mean) + " " +
                       std::to_string(rare));
          for (const std::size_t less : {0, 1, 40}) {
            const std::size_t room = plan.bytes() - std::min(less, plan.bytes());
            std::vector<std::byte> out(room + 16, std::byte{0xA5});
            RiceEncoder encoder(*kernels, std::span(out).first(room));
            for (std::size_t begin = 0; begin < count; begin += kBlock) {
              encoder.add(std::span(indices).subspan(begin, std::min(kBlock, count - begin)));
            }
            encoder.finish();
            EXPECT_EQ(encoder.fits(), less == 0);
            EXPECT_TRUE(std::all_of(out.end() - 16, out.end(),
                                    [](std::byte byte) { return byte == std::byte{0xA5}; }));
            if (less > 0) continue;
            ASSERT_EQ(encoder.bytes(), expected.size());
            out.resize(room);
            ASSERT_EQ(out, expected);
          }
        }
      }
    }
  }
}

// Not only the parameters that our writer chooses, and the long form for any gap.
TEST(Rice, ReadsAnyParameterAndTheLongForm) {
  std::mt19937 random(2);
  for (unsigned b = 0; b < 32; ++b) {
    const double mean = b < 20 ? 1.5 * static_cast<double>(1u << b) : 1e6;
    const std::vector<std::uint32_t> indices = draw(600, mean, 40, random);
    Bits bits;
    const std::vector<std::uint32_t> gaps = gaps_of(indices);
    for (std::size_t i = 0; i < gaps.size(); ++i) {
      if (i % kBlock == 0) put(bits, b, kRiceParameterBits);
      if (random() % 50 == 0) {
        put(bits, 0xFFFFFFFFu, 32);
        put(bits, gaps[i], 32);
      } else {
        put_gap(bits, gaps[i], b);
      }
    }
    std::vector<std::byte> section = bytes_of(bits);
    ErrorCode result = ErrorCode::ok;
    ASSERT_EQ(read(section, indices.size(), UINT32_MAX, result), indices) << b;
    EXPECT_EQ(result, ErrorCode::ok) << b;
    section.resize(section.size() / 2);
    read(section, indices.size(), UINT64_MAX, result);
    EXPECT_EQ(result, ErrorCode::truncated) << b;
  }
}

// The parameter that is chosen is a minimum: its neighbours cost as much or more.
TEST(Rice, PlansTheSmallestOfTheParametersNearby) {
  std::mt19937 random(3);
  for (const double mean : {0.3, 3.0, 50.0, 5000.0}) {
    const std::vector<std::uint32_t> indices = draw(200, mean, 0, random);
    const RicePlan plan = plan_rice(indices);
    ASSERT_EQ(plan.parameters.size(), 1u);
    for (const int step : {-1, 1}) {
      const int b = plan.parameters[0] + step;
      if (b < 0 || b > 31) continue;
      EXPECT_GE(plain(indices, {static_cast<std::uint8_t>(b)}).size(), plan.bits) << mean;
    }
  }
}

}  // namespace
}  // namespace dgc::wire
