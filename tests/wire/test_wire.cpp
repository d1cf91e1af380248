#include "dgc/wire.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <set>

#include "support/helpers.h"
#include "support/samples.h"
#include "wire/values.h"

namespace dgc {
namespace {

using test::code_of;
using test::same_bits;

const ValueType kTypes[] = {ValueType::fp32, ValueType::fp16,   ValueType::bf16,  ValueType::int8,
                            ValueType::sign, ValueType::table2, ValueType::table4};
const IndexCoding kCodings[] = {IndexCoding::runs, IndexCoding::rice, IndexCoding::bitmap,
                                IndexCoding::dense, IndexCoding::automatic};

struct Selected {
  std::vector<std::uint32_t> indices;
  std::vector<float> values;
};

Selected draw(std::uint64_t n, std::size_t k, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> sample;
  std::set<std::uint32_t> chosen;
  while (chosen.size() < k) chosen.insert(static_cast<std::uint32_t>(random() % n));
  Selected result{{chosen.begin(), chosen.end()}, {}};
  for (std::size_t i = 0; i < k; ++i)
    result.values.push_back(std::copysign(1.0f, sample(random)) + sample(random) * 0.1f);
  return result;
}

TEST(Wire, RoundTripForEveryTypeAndCoding) {
  for (const ValueType type : kTypes) {
    for (const IndexCoding coding : kCodings) {
      for (const auto& [n, k] : std::vector<std::pair<std::uint64_t, std::size_t>>{{1, 1},
                                                                                   {2, 1},
                                                                                   {33, 33},
                                                                                   {1000, 1},
                                                                                   {1000, 255},
                                                                                   {1000, 256},
                                                                                   {1000, 257},
                                                                                   {100'000, 3000},
                                                                                   {300'000, 7}}) {
        if (coding == IndexCoding::dense && !wire::says_zero(type) && k < n) continue;
        SCOPED_TRACE(std::string(name_of(type)) + " " + std::string(name_of(coding)) + " " +
                     std::to_string(n) + " " + std::to_string(k));
        const Selected in = draw(n, k, 5);
        const FrameInput input{.tensor = 9,
                               .elements = n,
                               .indices = in.indices,
                               .values = in.values,
                               .value_type = type,
                               .coding = coding};
        std::vector<std::byte> frame(frame_bound(n, k, type, coding));
        std::vector<float> decoded(k);
        const FrameInfo info = encode_frame(input, frame, decoded);
        EXPECT_LE(info.bytes, frame.size());
        EXPECT_LE(info.header_bytes(), 16u);
        const auto message = test::message_of({input});
        EXPECT_EQ(message, test::message_of({input})) << "the same bytes every time";
        const std::vector<Entries> frames = decode_entries(CheckedMessage(message), n);
        ASSERT_EQ(frames.size(), 1u);
        std::vector<float> all(n, 0.0f);
        for (std::size_t i = 0; i < frames[0].indices.size(); ++i)
          all[frames[0].indices[i]] = frames[0].values[i];
        for (std::size_t i = 0; i < k; ++i) {
          EXPECT_EQ(all[in.indices[i]], decoded[i]);
          const float error = type == ValueType::fp32     ? 0.0f
                              : type == ValueType::fp16   ? 1e-3f
                              : type == ValueType::bf16   ? 1e-2f
                              : type == ValueType::int8   ? 0.02f
                              : type == ValueType::table2 ? 0.5f
                              : type == ValueType::table4 ? 0.5f
                                                          : 1.0f;
          EXPECT_NEAR(decoded[i], in.values[i], error);
          all[in.indices[i]] = 0.0f;
        }
        EXPECT_EQ(std::count(all.begin(), all.end(), 0.0f), static_cast<std::ptrdiff_t>(n))
            << "nothing else";
        std::vector<float> target(n, 1.0f);
        std::vector<std::span<float>> targets(10);
        targets[9] = target;
        const CheckedMessage checked(message);
        decode_add(checked, targets, -0.5f);
        EXPECT_EQ(checked.header().step, 7u);
        EXPECT_EQ(checked.header().sender, 3u);
        for (std::size_t i = 0; i < k; ++i)
          EXPECT_EQ(target[in.indices[i]], 1.0f + -0.5f * decoded[i]);
      }
    }
  }
}

// The bound holds for positions chosen to be bad for the coding: all at the end, one per block far
// apart, clusters with one far outlier.
TEST(Wire, NoInputExceedsTheBound) {
  std::mt19937 random(6);
  for (const std::uint64_t n : {1ull, 10ull, 1000ull, 65'536ull, 1'000'000ull, 4'294'967'295ull}) {
    for (const std::size_t k : {1, 2, 10, 256, 257, 1000}) {
      if (k > n) continue;
      std::vector<std::vector<std::uint32_t>> shapes(3);
      for (std::size_t i = 0; i < k; ++i) {
        shapes[0].push_back(static_cast<std::uint32_t>(n - k + i));
        shapes[1].push_back(static_cast<std::uint32_t>(i * (n / k)));
        shapes[2].push_back(static_cast<std::uint32_t>(i + 1 == k ? n - 1 : i));
      }
      for (const auto& indices : shapes) {
        const std::vector<float> values(k, 1.0f);
        for (const IndexCoding coding :
             {IndexCoding::runs, IndexCoding::rice, IndexCoding::automatic}) {
          std::vector<std::byte> out(frame_bound(n, k, ValueType::sign, coding));
          std::vector<float> decoded(k);
          EXPECT_EQ(code_of([&] {
                      encode_frame({.tensor = 65'000,
                                    .elements = n,
                                    .indices = indices,
                                    .values = values,
                                    .value_type = ValueType::sign,
                                    .coding = coding},
                                   out, decoded);
                    }),
                    ErrorCode::ok)
              << n << " " << k;
          EXPECT_GE(frame_bound(n, k, ValueType::sign, coding) + 8,
                    frame_bound(n, k > 1 ? k - 1 : k, ValueType::sign, coding));
        }
      }
    }
  }
}

TEST(Wire, AutomaticIsNeverLargerThanAnyOtherCoding) {
  for (const std::size_t k : {1, 10, 100, 500, 900, 999, 1000}) {
    const Selected in = draw(1000, k, static_cast<std::uint32_t>(k));
    for (const ValueType type : {ValueType::fp32, ValueType::fp16, ValueType::int8}) {
      const auto size = [&](IndexCoding coding) {
        return test::message_of({{.tensor = 0,
                                  .elements = 1000,
                                  .indices = in.indices,
                                  .values = in.values,
                                  .value_type = type,
                                  .coding = coding}})
            .size();
      };
      for (const IndexCoding coding : kCodings)
        EXPECT_LE(size(IndexCoding::automatic), size(coding) + 2) << k;
    }
  }
}

TEST(Wire, IndexBitsAreAtTheEntropyBound) {
  const std::uint64_t n = 2'000'000;
  for (const auto& [ratio, limit] :
       {std::pair{0.001, 1.012}, std::pair{0.01, 1.01}, std::pair{0.1, 1.02}}) {
    const auto k = static_cast<std::size_t>(ratio * static_cast<double>(n));
    const Selected in = draw(n, k, 7);
    std::vector<std::byte> out(frame_bound(n, k, ValueType::sign, IndexCoding::rice));
    std::vector<float> decoded(k);
    const FrameInfo info = encode_frame({.tensor = 0,
                                         .elements = n,
                                         .indices = in.indices,
                                         .values = in.values,
                                         .value_type = ValueType::sign,
                                         .coding = IndexCoding::rice},
                                        out, decoded);
    const auto ln = [](double x) { return std::lgamma(x + 1.0); };
    const double kd = static_cast<double>(k);
    const double bound = (ln(static_cast<double>(n)) - ln(kd) - ln(static_cast<double>(n) - kd)) /
                         std::log(2.0) / kd;
    EXPECT_LT(static_cast<double>(info.index_bytes) * 8.0 / kd, limit * bound) << ratio;
  }
}

TEST(Wire, QuantisationErrorsAreBounded) {
  test::Lcg random(9);
  std::vector<float> values(1000);
  std::vector<std::uint32_t> indices(1000);
  for (std::size_t i = 0; i < 1000; ++i) {
    indices[i] = static_cast<std::uint32_t>(2 * i);
    values[i] = random.value() * std::ldexp(1.0f, static_cast<int>(random.next() % 8));
  }
  const auto decoded_as = [&](ValueType type) {
    std::vector<std::byte> out(frame_bound(2000, 1000, type, IndexCoding::rice));
    std::vector<float> decoded(1000);
    encode_frame({.tensor = 0,
                  .elements = 2000,
                  .indices = indices,
                  .values = values,
                  .value_type = type,
                  .coding = IndexCoding::rice},
                 out, decoded);
    return decoded;
  };
  EXPECT_TRUE(same_bits(decoded_as(ValueType::fp32), values));
  const auto half = decoded_as(ValueType::fp16);
  const auto brain = decoded_as(ValueType::bf16);
  for (std::size_t i = 0; i < 1000; ++i) {
    EXPECT_LE(std::fabs(half[i] - values[i]), std::fabs(values[i]) * 0x1p-11f);
    EXPECT_LE(std::fabs(brain[i] - values[i]), std::fabs(values[i]) * 0x1p-8f);
  }
  const auto sign = decoded_as(ValueType::sign);
  for (std::size_t i = 0; i < 1000; ++i) EXPECT_EQ(std::signbit(sign[i]), std::signbit(values[i]));
}

Selected tail(std::size_t k, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::exponential_distribution<float> beyond(3.0f);
  Selected result;
  for (std::size_t i = 0; i < k; ++i) {
    result.indices.push_back(static_cast<std::uint32_t>(5 * i));
    const float magnitude = 2.5f + beyond(random);
    result.values.push_back((random() & 1) != 0 ? magnitude : -magnitude);
  }
  return result;
}

std::vector<float> decoded_as(ValueType type, const Selected& in) {
  const std::size_t k = in.indices.size();
  std::vector<std::byte> out(frame_bound(5 * k, k, type, IndexCoding::rice));
  std::vector<float> decoded(k);
  encode_frame({.tensor = 0,
                .elements = 5 * k,
                .indices = in.indices,
                .values = in.values,
                .value_type = type,
                .coding = IndexCoding::rice},
               out, decoded);
  return decoded;
}

// docs/format.md, "Tables".
TEST(Tables, TheExampleOfTheDocument) {
  const std::vector<std::uint32_t> indices = {1, 2, 5};
  const std::vector<float> values = {-1.5f, 1.0f, 1.5f};
  std::vector<std::byte> out(100);
  std::vector<float> decoded(3);
  const FrameInfo info = encode_frame({.tensor = 0,
                                       .elements = 8,
                                       .indices = indices,
                                       .values = values,
                                       .value_type = ValueType::table2,
                                       .coding = IndexCoding::bitmap},
                                      out, decoded);
  std::vector<unsigned> bytes;
  for (std::size_t i = 0; i < info.bytes; ++i) bytes.push_back(std::to_integer<unsigned>(out[i]));
  EXPECT_EQ(bytes, (std::vector<unsigned>{0x0A, 0x00, 0x6A, 0x08, 0x03, 0x80, 0x3F, 0xC0, 0x3F,
                                          0x13, 0x26}));
  EXPECT_EQ(decoded, values);
}

TEST(Tables, AreFittedToEachBlock) {
  // As many magnitudes as a table has: nothing is lost, in the second block either.
  for (const auto& [type, levels] : {std::pair{ValueType::table2, 2}, {ValueType::table4, 8}}) {
    Selected in = tail(512, 3);
    for (std::size_t i = 0; i < 512; ++i) {
      const float magnitude = (i < 256 ? 1.0f : 1024.0f) * static_cast<float>(i * 7 % levels + 1);
      in.values[i] = std::copysign(magnitude, in.values[i]);
    }
    EXPECT_EQ(decoded_as(type, in), in.values) << name_of(type);
  }
}

TEST(Tables, MoreBitsLeaveASmallerError) {
  const Selected in = tail(20'000, 4);
  const auto error = [&](ValueType type) {
    const std::vector<float> decoded = decoded_as(type, in);
    double squares = 0.0;
    double all = 0.0;
    for (std::size_t i = 0; i < decoded.size(); ++i) {
      squares += std::pow(static_cast<double>(decoded[i]) - static_cast<double>(in.values[i]), 2.0);
      all += std::pow(static_cast<double>(in.values[i]), 2.0);
    }
    return std::sqrt(squares / all);
  };
  EXPECT_LT(error(ValueType::table4), 0.35 * error(ValueType::table2));
  // The best two levels for an exponential tail leave 0.594 of what one level leaves. Lloyd's
  // method gets there.
  EXPECT_LT(error(ValueType::table2), 1.02 * 0.594 * error(ValueType::sign));
}

// Where a value begins to be sent, told by comparisons and by rounding it: all floats near there.
TEST(Wire, VanishingIsTheSameForABlockAndForOneValue) {
  for (const ValueType type : kTypes) {
    for (const float most :
         {0.0f, FLT_TRUE_MIN, 1e-43f, FLT_MIN, 1e-36f, 1e-5f, 1.0f, 65504.0f, 3e38f}) {
      const wire::Vanishing vanishing(type, most);
      float low = 0.0f;  // goes
      float high = most;
      while (std::nextafter(low, high) < high) {
        const float middle = low + (high - low) / 2.0f;
        (wire::vanishes(type, middle, most) ? low : high) = middle;
      }
      float x = low;
      for (int i = 0; i < 100 && x > 0.0f; ++i) x = std::nextafter(x, 0.0f);
      for (int i = 0; i < 200 && x <= most; ++i, x = std::nextafter(x, FLT_MAX)) {
        EXPECT_EQ(vanishing(x), wire::vanishes(type, x, most))
            << name_of(type) << " " << x << " of " << most;
      }
      for (float y = most; y > FLT_TRUE_MIN; y *= 0.7f) {
        EXPECT_EQ(vanishing(y), wire::vanishes(type, y, most))
            << name_of(type) << " " << y << " of " << most;
      }
    }
  }
}

// A gradient of 1e-9 beside one of 1 vanishes in int8: it must not be sent, and the caller must be
// told.
TEST(Wire, EntriesThatWouldDecodeToZeroAreNotSent) {
  std::vector<std::uint32_t> indices;
  std::vector<float> values;
  for (std::uint32_t i = 0; i < 1000; ++i) {
    indices.push_back(i * 5);
    values.push_back(i % 3 == 0 ? 1.0f : i % 3 == 1 ? 1e-9f : -0.5f);
  }
  for (const ValueType type : kTypes) {
    std::vector<std::byte> out(frame_bound(5000, 1000, type, IndexCoding::rice));
    std::vector<float> decoded(1000);
    const FrameInfo info = encode_frame({.tensor = 0,
                                         .elements = 5000,
                                         .indices = indices,
                                         .values = values,
                                         .value_type = type,
                                         .coding = IndexCoding::rice},
                                        out, decoded);
    const auto lost = std::count(decoded.begin(), decoded.end(), 0.0f);
    EXPECT_EQ(lost, type == ValueType::int8 ? 333 : 0) << name_of(type);
    EXPECT_EQ(info.entries, 1000u - static_cast<std::size_t>(lost));
  }
  const float tiny = 1e-9f;
  const std::uint32_t zero = 0;
  std::vector<std::byte> out(100);
  float decoded = 0.0f;
  encode_frame({.tensor = 0,
                .elements = 10,
                .indices = {&zero, 1},
                .values = {&tiny, 1},
                .value_type = ValueType::fp16},
               out, {&decoded, 1});
  EXPECT_NEAR(decoded, 1e-9f, 1e-12f) << "fp16 alone would have made it zero";
}

TEST(Wire, ExtremesSurviveTheirRoundTrip) {
  for (const float x : {FLT_MAX, -FLT_MAX, FLT_MIN, FLT_TRUE_MIN, 1e-40f, 65519.0f, 65520.0f}) {
    for (const ValueType type : kTypes) {
      const std::uint32_t at = 0;
      std::vector<std::byte> out(100);
      float decoded = 0.0f;
      encode_frame({.tensor = 0,
                    .elements = 3,
                    .indices = {&at, 1},
                    .values = {&x, 1},
                    .value_type = type,
                    .coding = IndexCoding::rice},
                   out, {&decoded, 1});
      EXPECT_TRUE(std::isfinite(decoded)) << x << " " << name_of(type);
      const bool short_floats =
          type == ValueType::bf16 || type == ValueType::table2 || type == ValueType::table4;
      const bool below_bf16 = short_floats && std::fabs(x) < 1e-38f;
      EXPECT_TRUE(below_bf16 || std::fabs(decoded / x - 1.0f) < 0.01f) << x << " " << name_of(type);
    }
  }
}

// "Whole" input has no indices; zeros in it cost nothing where a sparse coding is smaller.
TEST(Wire, WholeTensorsTakeTheSmallestCoding) {
  std::vector<float> values(1000, 0.0f);
  const auto encode = [&](ValueType type) {
    std::vector<std::byte> out(frame_bound(1000, 1000, type, IndexCoding::automatic));
    std::vector<float> decoded(1000);
    const FrameInfo info = encode_frame(
        {.tensor = 0, .elements = 1000, .indices = {}, .values = values, .value_type = type}, out,
        decoded);
    EXPECT_TRUE(type != ValueType::fp32 || same_bits(decoded, values));
    return info;
  };
  EXPECT_EQ(encode(ValueType::fp32).bytes, 0u) << "all zero: no frame";
  values[500] = 1.0f;
  EXPECT_EQ(encode(ValueType::fp32).entries, 1u);
  for (const ValueType type : {ValueType::sign, ValueType::table2, ValueType::table4}) {
    EXPECT_NE(encode(type).coding, IndexCoding::dense) << name_of(type) << " cannot say zero";
  }
  std::fill(values.begin(), values.end(), 2.0f);
  EXPECT_EQ(encode(ValueType::fp32).coding, IndexCoding::dense);
  for (const ValueType type : {ValueType::sign, ValueType::table2, ValueType::table4}) {
    EXPECT_EQ(encode(type).coding, IndexCoding::dense);
  }
}

TEST(Wire, WriterRefusesFramesOutOfOrder) {
  std::vector<std::byte> out(1000);
  MessageWriter writer(out, {});
  const std::uint32_t at = 0;
  const float value = 1.0f;
  float decoded = 0.0f;
  const FrameInput input{.tensor = 4, .elements = 1, .indices = {&at, 1}, .values = {&value, 1}};
  writer.add(input, {&decoded, 1});
  EXPECT_EQ(code_of([&] { writer.add(input, {&decoded, 1}); }), ErrorCode::frame_order);
  EXPECT_EQ(code_of([&] { (void)CheckedMessage(std::span(out).first(writer.finish())); }),
            ErrorCode::ok);
}

// Frames that are encoded where they will lie, the second of them too far up.
TEST(Wire, WriterSettlesFramesThatAreInItsBuffer) {
  std::vector<float> values(100, 1.5f);
  std::vector<float> decoded(values.size());
  std::vector<std::uint32_t> indices(values.size());
  std::iota(indices.begin(), indices.end(), 7u);
  FrameInput input{.tensor = 4, .elements = 5000, .indices = indices, .values = values};
  const std::size_t bound =
      frame_bound(input.elements, indices.size(), input.value_type, input.coding);
  std::vector<std::byte> expected(kMessageOverhead + 2 * bound);
  MessageWriter plain(expected, {.step = 3});
  std::vector<std::byte> out(kMessageOverhead + 2 * bound);
  MessageWriter writer(out, {.step = 3});
  const std::span<std::byte> room = writer.room();
  ASSERT_EQ(room.size(), 2 * bound);
  const FrameInfo first = encode_frame(input, room.first(bound), decoded);
  plain.add(input, decoded);
  input.tensor = 6;
  std::fill(values.begin(), values.end(), -2.0f);
  const FrameInfo second = encode_frame(input, room.subspan(bound), decoded);
  plain.add(input, decoded);
  writer.settle(4, room.first(first.bytes));
  writer.settle(5, {});
  EXPECT_EQ(code_of([&] { writer.settle(4, room.first(first.bytes)); }), ErrorCode::frame_order);
  writer.settle(6, room.subspan(bound, second.bytes));
  out.resize(writer.finish());
  expected.resize(plain.finish());
  EXPECT_EQ(out, expected);
}

TEST(Names, ParseWhatTheyPrint) {
  for (const ValueType type : kTypes) EXPECT_EQ(parse_value_type(name_of(type)), type);
  for (const IndexCoding coding : kCodings) EXPECT_EQ(parse_index_coding(name_of(coding)), coding);
  EXPECT_EQ(code_of([] { parse_value_type("fp8"); }), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of([] { parse_index_coding(""); }), ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace dgc
