// Every kind of damage has its error, and nothing is written.
#include <gtest/gtest.h>

#include <algorithm>

#include "support/helpers.h"
#include "support/samples.h"

namespace dgc {
namespace {

using test::code_of;

TEST(Reject, EachDamageGivesItsOwnCodeAndWritesNothing) {
  for (const test::Sample& sample : test::damaged_samples()) {
    SCOPED_TRACE(sample.name);
    EXPECT_EQ(error_name(code_of([&] { (void)CheckedMessage(sample.bytes); })),
              error_name(sample.error));
    EXPECT_EQ(error_name(code_of([&] { decode_entries(CheckedMessage(sample.bytes), 1000); })),
              error_name(sample.error));
    for (const std::size_t n : {1, 5, 8, 9, 10}) {
      std::vector<float> values(n, 5.0f);
      std::vector<std::span<float>> targets(4, values);
      EXPECT_NE(code_of([&] { decode_add(CheckedMessage(sample.bytes), targets); }), ErrorCode::ok);
      EXPECT_EQ(std::count(values.begin(), values.end(), 5.0f), static_cast<std::ptrdiff_t>(n));
    }
  }
}

// A good first frame before a bad second one: the first must not be applied.
TEST(Reject, AMessageIsAppliedWholeOrNotAtAll) {
  std::vector<std::byte> message = test::valid_samples()[1].bytes;  // fp32-rice, tensors 0 and 200
  std::vector<float> large(200'000, 0.0f);
  std::vector<float> small(1, 0.0f);
  std::vector<std::span<float>> targets(201);
  targets[0] = large;
  targets[200] = small;
  EXPECT_EQ(code_of([&] { decode_add(CheckedMessage(message), std::span(targets).first(200)); }),
            ErrorCode::unknown_tensor);
  targets[200] = large;
  EXPECT_EQ(code_of([&] { decode_add(CheckedMessage(message), targets); }),
            ErrorCode::shape_mismatch);
  EXPECT_TRUE(std::all_of(large.begin(), large.end(), [](float x) { return x == 0.0f; }));
  targets[200] = small;
  EXPECT_EQ(code_of([&] { decode_add(CheckedMessage(message), targets); }), ErrorCode::ok);
  EXPECT_EQ(small[0], -0.75f);
}

TEST(Reject, EveryFlippedBitAndEveryTruncationIsFound) {
  for (const test::Sample& sample : test::valid_samples()) {
    if (sample.bytes.size() > 1000) continue;
    for (std::size_t bit = 0; bit < sample.bytes.size() * 8; ++bit) {
      std::vector<std::byte> bytes = sample.bytes;
      bytes[bit / 8] ^= std::byte{1} << (bit % 8);
      ASSERT_NE(code_of([&] { (void)CheckedMessage(bytes); }), ErrorCode::ok)
          << sample.name << " bit " << bit;
    }
    for (std::size_t size = 0; size < sample.bytes.size(); ++size) {
      ASSERT_NE(code_of([&] { (void)CheckedMessage(std::span(sample.bytes).first(size)); }),
                ErrorCode::ok);
    }
  }
}

TEST(Reject, DecodeEntriesKeepsToItsLimit) {
  const std::vector<std::byte> message = test::valid_samples()[1].bytes;  // 301 entries
  EXPECT_EQ(code_of([&] { decode_entries(CheckedMessage(message), 300); }),
            ErrorCode::limit_exceeded);
  EXPECT_EQ(code_of([&] { decode_entries(CheckedMessage(message), 301); }), ErrorCode::ok);
}

TEST(Reject, TheEncoderChecksItsInput) {
  std::vector<std::byte> out(1000);
  const auto encode = [&](std::vector<std::uint32_t> indices, std::vector<float> values,
                          std::size_t room = 1000, ValueType type = ValueType::fp32,
                          IndexCoding coding = IndexCoding::rice) {
    std::vector<float> decoded(values.size());
    return code_of([&] {
      encode_frame({.tensor = 0,
                    .elements = 10,
                    .indices = indices,
                    .values = values,
                    .value_type = type,
                    .coding = coding},
                   std::span(out).first(room), decoded);
    });
  };
  EXPECT_EQ(encode({1, 2}, {1.0f, 2.0f}), ErrorCode::ok);
  EXPECT_EQ(encode({2, 1}, {1.0f, 2.0f}), ErrorCode::index_not_increasing);
  EXPECT_EQ(encode({2, 2}, {1.0f, 2.0f}), ErrorCode::index_not_increasing);
  EXPECT_EQ(encode({2, 10}, {1.0f, 2.0f}), ErrorCode::index_out_of_range);
  EXPECT_EQ(encode({1, 2}, {1.0f}), ErrorCode::shape_mismatch);
  EXPECT_EQ(encode({1}, {std::numeric_limits<float>::quiet_NaN()}), ErrorCode::nonfinite_value);
  EXPECT_EQ(encode({1, 2}, {1.0f, 2.0f}, 8), ErrorCode::buffer_too_small);
  for (const ValueType type : {ValueType::sign, ValueType::table2, ValueType::table4}) {
    EXPECT_EQ(encode({1}, {1.0f}, 1000, type, IndexCoding::dense), ErrorCode::invalid_argument);
  }
}

}  // namespace
}  // namespace dgc
