// Frames written block by block: the bytes of encode_frame, or the word that these are smaller.
#include "wire/frame_stream.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "dgc/target.h"
#include "wire/values.h"

namespace dgc::wire {
namespace {

constexpr std::byte kUntouched{0xA5};

struct Drawn {
  std::uint64_t elements = 0;
  std::vector<std::uint32_t> indices;
  std::vector<float> values;
};

/// `count` entries with gaps of about `mean`.
Drawn draw(std::size_t count, double mean, std::mt19937& random) {
  Drawn drawn;
  std::exponential_distribution<double> gap(1.0 / mean);
  std::uint32_t next = 0;
  for (std::size_t i = 0; i < count; ++i) {
    next += static_cast<std::uint32_t>(gap(random));
    drawn.indices.push_back(next++);
    drawn.values.push_back(1.0f + static_cast<float>(random() % 1000));
  }
  drawn.elements = next + random() % 10;
  return drawn;
}

FrameInfo stream(const Drawn& drawn, const RiceKernels& kernels, std::span<std::byte> out) {
  FrameStream frame({.tensor = 9, .elements = drawn.elements, .entries = drawn.indices.size()},
                    kernels, out);
  // Several blocks at once, and the rest by itself.
  constexpr std::size_t kSome = 3 * kBlock;
  const std::size_t count = drawn.indices.size();
  for (std::size_t begin = 0; begin < count; begin += kSome) {
    const std::size_t some = std::min(kSome, count - begin);
    frame.add(std::span(drawn.indices).subspan(begin, some),
              std::span(drawn.values).subspan(begin, some));
  }
  return frame.finish();
}

std::vector<std::byte> encoded(const Drawn& drawn, IndexCoding coding, FrameInfo& info) {
  std::vector<std::byte> out(
      frame_bound(drawn.elements, drawn.indices.size(), ValueType::fp32, coding));
  std::vector<float> decoded(drawn.values.size());
  info = encode_frame({.tensor = 9,
                       .elements = drawn.elements,
                       .indices = drawn.indices,
                       .values = drawn.values,
                       .value_type = ValueType::fp32,
                       .coding = coding},
                      out, decoded);
  out.resize(info.bytes);
  return out;
}

TEST(FrameStream, WritesTheBytesOfEncodeFrame) {
  std::mt19937 random(1);
  std::size_t smallest = 0;
  std::size_t others = 0;
  // Among the counts are those where the length of the frame gets another length itself.
  std::vector<std::size_t> counts = {1, 2, 255, 256, 257, 512, 513, 1000, 3456};
  for (std::size_t count = 20; count < 32; ++count) counts.push_back(count);
  for (std::size_t count = 3000; count < 4200; count += 12) counts.push_back(count);
  for (const std::size_t count : counts) {
    for (const double mean : {0.5, 1.5, 3.0, 15.0, 100.0, 200'000.0}) {
      if (static_cast<double>(count) * mean > 4e9) continue;
      SCOPED_TRACE(std::to_string(count) + " " + std::to_string(mean));
      const Drawn drawn = draw(count, mean, random);
      for (const IndexCoding coding : {IndexCoding::rice, IndexCoding::automatic}) {
        FrameInfo expected;
        const std::vector<std::byte> frame = encoded(drawn, coding, expected);
        const std::size_t bound =
            frame_bound(drawn.elements, drawn.indices.size(), ValueType::fp32, coding);
        // Nothing is written past the bound.
        std::vector<std::byte> out(bound + 16, kUntouched);
        const FrameInfo info =
            stream(drawn, rice_kernels(active_target()), std::span(out).first(bound));
        EXPECT_TRUE(std::all_of(out.end() - 16, out.end(),
                                [](std::byte byte) { return byte == kUntouched; }));
        if (coding == IndexCoding::automatic && !rice_is_smallest(info)) {
          ++others;
          continue;
        }
        ++smallest;
        ASSERT_EQ(expected.coding, IndexCoding::rice);
        ASSERT_EQ(info.bytes, expected.bytes);
        EXPECT_EQ(info.index_bytes, expected.index_bytes);
        EXPECT_EQ(info.value_bytes, expected.value_bytes);
        out.resize(info.bytes);
        ASSERT_EQ(out, frame);
      }
    }
  }
  EXPECT_GT(smallest, others);
  EXPECT_GT(others, 0u);
}

TEST(FrameStream, SuitsRiceAndWhatIsNotDenserThanAThird) {
  const FrameInfo sparse{.elements = 900, .entries = 299};
  const FrameInfo denser{.elements = 900, .entries = 300};
  EXPECT_TRUE(FrameStream::suits(sparse, IndexCoding::automatic));
  EXPECT_FALSE(FrameStream::suits(denser, IndexCoding::automatic));
  EXPECT_TRUE(FrameStream::suits(denser, IndexCoding::rice));
  EXPECT_FALSE(FrameStream::suits(sparse, IndexCoding::bitmap));
  EXPECT_FALSE(FrameStream::suits(sparse, IndexCoding::runs));
  EXPECT_FALSE(FrameStream::suits({.elements = 900, .entries = 0}, IndexCoding::rice));
}

}  // namespace
}  // namespace dgc::wire
