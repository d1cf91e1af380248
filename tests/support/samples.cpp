#include "support/samples.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <cmath>
#include <limits>

namespace dgc::test {
namespace {

constexpr std::size_t kHeader = 32;

template <typename T>
void put(std::vector<std::byte>& bytes, std::size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
}

/// Makes length and checksum fit whatever was done to the bytes between.
void seal(std::vector<std::byte>& bytes) {
  put(bytes, 24, static_cast<std::uint64_t>(bytes.size()));
  put(bytes, bytes.size() - 8,
      static_cast<std::uint64_t>(XXH64(bytes.data(), bytes.size() - 8, 0)));
}

/// A message around hand-made frame bytes.
std::vector<std::byte> around(const std::vector<unsigned>& frame_bytes, std::uint32_t frames = 1) {
  std::vector<std::byte> bytes = message_of({});
  std::vector<std::byte> body;
  for (const unsigned b : frame_bytes) body.push_back(static_cast<std::byte>(b));
  bytes.insert(bytes.begin() + kHeader, body.begin(), body.end());
  put(bytes, 12, frames);
  seal(bytes);
  return bytes;
}

/// A frame with its length in front: tensor 0, then what is given.
std::vector<unsigned> frame(std::vector<unsigned> body) {
  body.insert(body.begin(), static_cast<unsigned>(body.size()));
  return body;
}

unsigned codes(ValueType type, IndexCoding coding, unsigned version = 1) {
  return version << 6 | static_cast<unsigned>(type) << 3 | static_cast<unsigned>(coding);
}

MessageHeader with_notice(Notice notice) {
  return {.step = 7, .schema = 0xC0FFEE, .sender = 3, .notice = std::move(notice)};
}

Notice failed_notice() {
  Notice notice{.bucket = 1, .present = {true, true, false}};
  notice.failure = {.code = ErrorCode::nonfinite_gradient, .text = "compress: 'w': nan at index 3"};
  return notice;
}

}  // namespace

std::string listing_of(const Notice& notice) {
  std::string bits;
  for (const bool present : notice.present) bits += present ? '1' : '0';
  std::string text = fmt::format("notice {} {}{} {:016x} [{}]", notice.bucket, notice.stop ? 1 : 0,
                                 notice.nonfinite ? 1 : 0, notice.parameters.value_or(0), bits);
  if (!notice.failure) return text;
  return text + fmt::format(" {} {}", static_cast<int>(notice.failure->code), notice.failure->text);
}

std::vector<Sample> valid_samples() {
  std::vector<Sample> samples;
  for (const ValueType type : {ValueType::fp32, ValueType::fp16, ValueType::bf16, ValueType::int8,
                               ValueType::sign, ValueType::table2, ValueType::table4}) {
    for (const IndexCoding coding :
         {IndexCoding::runs, IndexCoding::rice, IndexCoding::bitmap, IndexCoding::dense}) {
      Lcg random(static_cast<std::uint64_t>(type) * 10 + static_cast<std::uint64_t>(coding));
      // More than a block of entries, gaps beyond a 16-bit run, then a second tensor of one
      // element.
      const bool dense = coding == IndexCoding::dense;
      const bool bitmap = coding == IndexCoding::bitmap;
      const std::uint64_t elements = dense ? 300 : bitmap ? 1000 : 200'000;
      std::vector<std::uint32_t> indices;
      std::vector<float> values;
      std::uint32_t next = 0;
      for (int i = 0; i < 300; ++i) {
        next += dense ? 0 : bitmap ? random.next() % 3 : i == 150 ? 70'000 : random.next() % 400;
        indices.push_back(next++);
        values.push_back(random.value());
      }
      const std::uint32_t only = 0;
      const float one = -0.75f;
      samples.push_back({std::string(name_of(type)) + "-" + std::string(name_of(coding)),
                         message_of({{.tensor = 0,
                                      .elements = elements,
                                      .indices = indices,
                                      .values = values,
                                      .value_type = type,
                                      .coding = coding},
                                     {.tensor = 200,
                                      .elements = 1,
                                      .indices = {&only, 1},
                                      .values = {&one, 1},
                                      .value_type = type,
                                      .coding = coding}})});
    }
  }
  samples.push_back({"empty", message_of({})});
  // What ranks have to say: with frames, without, and instead of them.
  const std::uint32_t third = 2;
  const float half = 0.5f;
  samples.push_back({"notice", message_of({{.tensor = 4,
                                            .elements = 3,
                                            .indices = {&third, 1},
                                            .values = {&half, 1},
                                            .value_type = ValueType::fp32,
                                            .coding = IndexCoding::rice}},
                                          with_notice({.bucket = 2,
                                                       .present = {true, false, true, true, false,
                                                                   false, false, false, true, true},
                                                       .stop = true,
                                                       .parameters = 0x0123456789ABCDEFu}))});
  samples.push_back({"notice-alone", message_of({}, with_notice({.nonfinite = true}))});
  samples.push_back({"notice-failed", message_of({}, with_notice(failed_notice()))});
  // Rice with an escape, in a block that is otherwise one run of neighbours.
  std::vector<std::uint32_t> cluster;
  for (std::uint32_t i = 0; i < 100; ++i) cluster.push_back(5 + i);
  cluster.push_back(4'000'000'000u);
  const std::vector<float> ones(cluster.size(), 1.0f);
  samples.push_back({"rice-escape", message_of({{.tensor = 1,
                                                 .elements = kMaxElements,
                                                 .indices = cluster,
                                                 .values = ones,
                                                 .value_type = ValueType::sign,
                                                 .coding = IndexCoding::rice}})});
  // Magnitudes from the smallest denormal to the largest float, in every type that can hold them.
  std::vector<std::uint32_t> at;
  std::vector<float> range;
  for (int e = -149; e <= 127; e += 4) {
    at.push_back(static_cast<std::uint32_t>(at.size() * 3));
    range.push_back(std::ldexp((e & 1) != 0 ? -1.5f : 1.0f, e));
  }
  range.back() = std::numeric_limits<float>::max();
  std::vector<FrameInput> wide;
  for (const ValueType type : {ValueType::fp32, ValueType::fp16, ValueType::bf16, ValueType::int8,
                               ValueType::sign, ValueType::table2, ValueType::table4}) {
    wide.push_back({.tensor = static_cast<std::uint32_t>(wide.size()),
                    .elements = 1000,
                    .indices = at,
                    .values = range,
                    .value_type = type,
                    .coding = IndexCoding::automatic});
  }
  samples.push_back({"range", message_of(wide)});
  // All denormal: exponents and scales at their lower end.
  std::vector<float> tiny;
  for (std::size_t i = 0; i < at.size(); ++i)
    tiny.push_back(std::ldexp(static_cast<float>(i + 1), -149));
  for (FrameInput& input : wide) input.values = tiny;
  samples.push_back({"denormals", message_of(wide)});
  return samples;
}

std::vector<Sample> damaged_samples() {
  std::vector<Sample> samples;
  const auto add = [&samples](std::string name, ErrorCode code, std::vector<std::byte> bytes) {
    samples.push_back({std::move(name), std::move(bytes), code});
  };
  const std::uint32_t indices[] = {1, 5, 7};
  const float values[] = {1.0f, -2.0f, 3.0f};
  const std::vector<std::byte> good = message_of({{.tensor = 0,
                                                   .elements = 10,
                                                   .indices = indices,
                                                   .values = values,
                                                   .value_type = ValueType::fp32,
                                                   .coding = IndexCoding::rice}});
  const auto changed = [&good](std::size_t at, unsigned value) {
    std::vector<std::byte> bytes = good;
    bytes[at] = static_cast<std::byte>(value);
    seal(bytes);
    return bytes;
  };

  // The message.
  add("nothing", ErrorCode::truncated, {});
  add("half_header", ErrorCode::truncated, {good.begin(), good.begin() + 20});
  add("one_byte_short", ErrorCode::truncated, {good.begin(), good.end() - 1});
  add("magic", ErrorCode::bad_magic, changed(0, 'X'));
  add("version", ErrorCode::bad_version, changed(4, 2));
  add("reserved_byte", ErrorCode::reserved_bits, changed(5, 2));
  // The notice, which begins at byte 32.
  const std::vector<std::byte> failed = message_of({}, with_notice(failed_notice()));
  const auto noticed = [&failed](std::size_t at, unsigned value) {
    std::vector<std::byte> bytes = failed;
    bytes[at] = static_cast<std::byte>(value);
    seal(bytes);
    return bytes;
  };
  add("notice_flag_without_notice", ErrorCode::truncated, [] {
    std::vector<std::byte> bytes = message_of({});
    bytes[5] = std::byte{1};
    seal(bytes);
    return bytes;
  }());
  add("notice_of_more_tensors", ErrorCode::truncated, noticed(39, 1));
  add("notice_flags", ErrorCode::reserved_bits, noticed(40, 16 | 8));
  add("notice_reserved_byte", ErrorCode::reserved_bits, noticed(41, 1));
  add("notice_code_of_no_failure", ErrorCode::bad_length, noticed(40, 0));
  add("notice_failure_without_code", ErrorCode::bad_count, noticed(42, 0));
  add("notice_cause_too_long", ErrorCode::bad_length, noticed(45, 3));
  add("notice_cause_cut", ErrorCode::truncated, noticed(44, 30));
  add("notice_cause_longer", ErrorCode::trailing_bytes, noticed(44, 28));
  add("notice_padding", ErrorCode::reserved_bits, noticed(48, 0x0B));
  auto frames_too = failed;
  put(frames_too, 12, std::uint32_t{1});
  seal(frames_too);
  add("notice_failure_and_frames", ErrorCode::bad_count, frames_too);

  auto flipped = good;
  flipped[40] ^= std::byte{4};
  add("bit_flip", ErrorCode::checksum_mismatch, flipped);
  auto longer = good;
  longer.push_back(std::byte{0});
  add("byte_after_message", ErrorCode::trailing_bytes, longer);
  auto lying = good;
  put(lying, 24, std::uint64_t{39});
  add("length_below_minimum", ErrorCode::bad_length, lying);
  auto more = good;
  put(more, 12, std::uint32_t{2});
  seal(more);
  add("frame_missing", ErrorCode::truncated, more);
  auto fewer = good;
  put(fewer, 12, std::uint32_t{0});
  seal(fewer);
  add("frame_not_counted", ErrorCode::trailing_bytes, fewer);

  // Frame headers. One fp32 value 1.0 in a bitmap of 8 elements is the base.
  const unsigned bitmap = codes(ValueType::fp32, IndexCoding::bitmap);
  const unsigned runs = codes(ValueType::fp32, IndexCoding::runs);
  const unsigned rice = codes(ValueType::fp32, IndexCoding::rice);
  const std::vector<unsigned> one = {0, 0, 0x80, 0x3F};
  const auto with_one = [&one](std::vector<unsigned> head, std::vector<unsigned> tail) {
    head.insert(head.end(), one.begin(), one.end());
    head.insert(head.end(), tail.begin(), tail.end());
    return head;
  };
  auto twice = frame(with_one({3, bitmap, 8, 1}, {2}));
  const auto second = twice;
  twice.insert(twice.end(), second.begin(), second.end());
  add("tensor_twice", ErrorCode::frame_order, around(twice, 2));
  add("frame_length_lies", ErrorCode::bad_length, around({100, 0, bitmap, 8, 1}));
  add("frame_of_nothing", ErrorCode::truncated, around({0}));
  add("frame_version", ErrorCode::bad_version,
      around(frame(with_one({0, codes(ValueType::fp32, IndexCoding::bitmap, 2), 8, 1}, {2}))));
  add("value_type", ErrorCode::bad_value_type,
      around(frame(with_one({0, 1u << 6 | 7u << 3 | 2u, 8, 1}, {2}))));
  add("index_coding", ErrorCode::bad_index_coding,
      around(frame(with_one({0, 1u << 6 | 4u, 8, 1}, {2}))));
  add("overlong_varint", ErrorCode::bad_varint,
      around(frame(with_one({0x80, 0, bitmap, 8, 1}, {2}))));
  add("varint_over_32_bits", ErrorCode::bad_varint,
      around(frame(with_one({0xFF, 0xFF, 0xFF, 0xFF, 0x1F, bitmap, 8, 1}, {2}))));
  add("varint_without_end", ErrorCode::bad_varint,
      around(frame({0x80, 0x80, 0x80, 0x80, 0x80, 1})));
  add("no_entries", ErrorCode::bad_count, around(frame({0, bitmap, 8, 0, 0})));
  add("more_entries_than_elements", ErrorCode::bad_count,
      around(frame(with_one({0, bitmap, 8, 9}, {2}))));
  add("dense_of_nothing", ErrorCode::bad_count,
      around(frame({0, codes(ValueType::fp32, IndexCoding::dense), 0})));
  add("values_cut", ErrorCode::truncated, around(frame({0, bitmap, 8, 1, 0, 0})));

  // Positions.
  add("bitmap_bit_missing", ErrorCode::bad_count, around(frame(with_one({0, bitmap, 8, 1}, {0}))));
  add("bitmap_bit_too_many", ErrorCode::bad_count, around(frame(with_one({0, bitmap, 8, 1}, {3}))));
  add("bitmap_padding", ErrorCode::reserved_bits,
      around(frame(with_one({0, bitmap, 5, 1}, {0x41}))));
  add("bitmap_too_short", ErrorCode::truncated, around(frame(with_one({0, bitmap, 9, 1}, {1}))));
  add("bitmap_too_long", ErrorCode::trailing_bytes,
      around(frame(with_one({0, bitmap, 8, 1}, {1, 0}))));
  add("run_past_the_end", ErrorCode::index_out_of_range,
      around(frame(with_one({0, runs, 8, 1}, {8, 0}))));
  add("run_escape_past_the_end", ErrorCode::index_out_of_range,
      around(frame(with_one({0, runs, 8, 1}, {0xFF, 0xFF, 0, 0}))));
  add("run_cut", ErrorCode::truncated, around(frame(with_one({0, runs, 8, 1}, {1}))));
  add("run_too_many", ErrorCode::trailing_bytes,
      around(frame(with_one({0, runs, 8, 1}, {1, 0, 1, 0}))));
  add("rice_past_the_end", ErrorCode::index_out_of_range,
      around(frame(with_one({0, rice, 8, 1}, {0x23, 0x00}))));
  add("rice_cut", ErrorCode::truncated, around(frame(with_one({0, rice, 8, 1}, {0xFF}))));
  add("rice_escape_cut", ErrorCode::truncated,
      around(frame(with_one({0, rice, 8, 1}, {0xE0, 0xFF, 0xFF, 0xFF, 0xFF}))));
  add("rice_padding", ErrorCode::reserved_bits, around(frame(with_one({0, rice, 8, 1}, {0x80}))));
  add("rice_byte_too_many", ErrorCode::trailing_bytes,
      around(frame(with_one({0, rice, 8, 1}, {0x00, 0x00}))));
  add("dense_with_positions", ErrorCode::trailing_bytes,
      around(frame(with_one({0, codes(ValueType::fp32, IndexCoding::dense), 1}, {0}))));

  // Values.
  const auto bits = [](ValueType type) { return codes(type, IndexCoding::bitmap); };
  add("fp32_nan", ErrorCode::nonfinite_value,
      around(frame({0, bitmap, 8, 1, 0, 0, 0xC0, 0x7F, 1})));
  add("fp32_infinity", ErrorCode::nonfinite_value,
      around(frame({0, bitmap, 8, 1, 0, 0, 0x80, 0xFF, 1})));
  add("fp16_infinity", ErrorCode::nonfinite_value,
      around(frame({0, bits(ValueType::fp16), 8, 1, 0, 0, 0x7C, 1})));
  add("fp16_scale", ErrorCode::bad_scale,
      around(frame({0, bits(ValueType::fp16), 8, 1, 113, 0, 0x3C, 1})));
  add("bf16_nan", ErrorCode::nonfinite_value,
      around(frame({0, bits(ValueType::bf16), 8, 1, 0xC0, 0x7F, 1})));
  add("int8_scale_nan", ErrorCode::bad_scale,
      around(frame({0, bits(ValueType::int8), 8, 1, 0, 0, 0xC0, 0x7F, 5, 1})));
  add("int8_scale_negative", ErrorCode::bad_scale,
      around(frame({0, bits(ValueType::int8), 8, 1, 0, 0, 0x80, 0xBF, 5, 1})));
  add("int8_scale_too_large", ErrorCode::bad_scale,
      around(frame({0, bits(ValueType::int8), 8, 1, 0xFF, 0xFF, 0x7F, 0x7F, 5, 1})));
  add("int8_minus_128", ErrorCode::reserved_bits,
      around(frame({0, bits(ValueType::int8), 8, 1, 0, 0, 0x80, 0x3F, 0x80, 1})));
  add("sign_scale_infinite", ErrorCode::bad_scale,
      around(frame({0, bits(ValueType::sign), 8, 1, 0, 0, 0x80, 0x7F, 0, 1})));
  add("sign_padding", ErrorCode::reserved_bits,
      around(frame({0, bits(ValueType::sign), 8, 1, 0, 0, 0x80, 0x3F, 2, 1})));
  // Tables: two magnitudes of one entry, in 2 bits, then eight, in 4.
  const auto table2 = [&](std::vector<unsigned> table, unsigned code) {
    std::vector<unsigned> body = {0, bits(ValueType::table2), 8, 1};
    body.insert(body.end(), table.begin(), table.end());
    body.insert(body.end(), {code, 1});
    return around(frame(body));
  };
  add("table2_falls", ErrorCode::bad_scale, table2({0x80, 0x3F, 0x00, 0x3F}, 1));
  add("table2_infinite", ErrorCode::bad_scale, table2({0x80, 0x3F, 0x80, 0x7F}, 1));
  add("table2_negative", ErrorCode::bad_scale, table2({0x80, 0x3F, 0x80, 0xBF}, 1));
  add("table2_padding", ErrorCode::reserved_bits, table2({0x80, 0x3F, 0x00, 0x40}, 4));
  std::vector<unsigned> eight = {0, bits(ValueType::table4), 8, 1};
  for (unsigned i = 0; i < 8; ++i) eight.insert(eight.end(), {i * 16, 0x3F});
  eight.insert(eight.end(), {7, 1});
  auto changed_eight = [&](std::size_t at, unsigned value) {
    std::vector<unsigned> body = eight;
    body[at] = value;
    return around(frame(body));
  };
  add("table4_falls", ErrorCode::bad_scale, changed_eight(4 + 2 * 3, 0));
  eight[4 + 2 * 7] = 0xC0;  // as the low byte of a NaN has it; 1.5 so far
  add("table4_nan", ErrorCode::bad_scale, changed_eight(4 + 2 * 7 + 1, 0x7F));
  add("table4_padding", ErrorCode::reserved_bits, changed_eight(20, 0x10));
  add("table4_cut", ErrorCode::truncated, [&] {
    std::vector<unsigned> body = eight;
    body.resize(20);
    return around(frame(body));
  }());
  return samples;
}

}  // namespace dgc::test
