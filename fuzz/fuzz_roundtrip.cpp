// Frames of every kind: the encoder is deterministic, keeps to its bound, and what it says the
// receiver will get is what the receiver gets, bit for bit. Frames that are written block by block
// are the same, with every instruction set of this machine.
#include <algorithm>
#include <cmath>

#include "dgc/target.h"
#include "dgc/wire.h"
#include "support.h"
#include "wire/frame_stream.h"

namespace {

using namespace dgc;
using fuzz::outcome;
using fuzz::require;

/// Bits of the largest size: enough for runs with several escapes.
constexpr unsigned kMaxWidth = 18;
constexpr std::uint32_t kLargest = (1u << kMaxWidth) - 1;
/// Values are what takes time under the fuzzer, and a few dozen blocks are as good as a thousand.
constexpr unsigned kMaxValuesWidth = 13;
constexpr std::uint32_t kMostValues = (1u << kMaxValuesWidth) - 1;

struct Case {
  FrameInput input;  // its spans point to the vectors
  std::vector<std::uint32_t> indices;
  std::vector<float> values;
};

/// Layout of an input: value type, coding, whole tensor or not, the width of the size and the
/// size, so that most are small and fast, the number of entries, the tensor, the mask of the
/// values, a number of gaps and the gaps; the rest are values.
Case make_case(fuzz::Input in) {
  static constexpr IndexCoding kCodings[] = {IndexCoding::runs, IndexCoding::rice,
                                             IndexCoding::bitmap, IndexCoding::dense,
                                             IndexCoding::automatic};
  Case made;
  FrameInput& input = made.input;
  input.value_type = static_cast<ValueType>(in.take<std::uint8_t>() % value_types().size());
  input.coding = kCodings[in.take<std::uint8_t>() % std::size(kCodings)];
  const bool whole = in.take<std::uint8_t>() % 2 != 0;
  const bool all_values = whole || input.coding == IndexCoding::dense;
  const unsigned width = in.take<std::uint8_t>() % ((all_values ? kMaxValuesWidth : kMaxWidth) + 1);
  input.elements = in.take<std::uint32_t>() & ((1u << width) - 1);
  const std::size_t most = in.take<std::uint32_t>() & kMostValues;
  input.tensor = in.take<std::uint32_t>();
  const auto mask = in.take<std::uint32_t>();
  std::vector<std::uint32_t> gaps(in.take<std::uint8_t>() % 32 + std::size_t{1});
  for (std::uint32_t& gap : gaps) gap = in.take<std::uint32_t>() & kLargest;
  std::vector<std::uint32_t> words;
  while (!in.empty()) words.push_back(in.take<std::uint32_t>());

  const fuzz::Pattern pattern(mask, std::move(words));
  std::size_t entries = input.elements;
  if (!whole) {
    std::uint64_t next = 0;
    for (std::size_t i = 0; i < most; ++i) {
      next += gaps[i % gaps.size()];
      if (next >= input.elements) break;
      made.indices.push_back(static_cast<std::uint32_t>(next++));
    }
    entries = made.indices.size();
  }
  for (std::size_t i = 0; i < entries; ++i) made.values.push_back(pattern.finite(i));
  input.indices = made.indices;
  input.values = made.values;
  return made;
}

struct Encoded {
  ErrorCode code = ErrorCode::ok;
  FrameInfo info;
  std::vector<float> decoded;
  std::vector<std::byte> message;
};

/// Into a buffer of exactly the documented size. What the buffers held before must not matter.
Encoded encode(const FrameInput& input, bool in_place, std::byte before) {
  const std::size_t bound =
      frame_bound(input.elements, input.values.size(), input.value_type, input.coding);
  Encoded result;
  result.decoded.resize(input.values.size(), std::bit_cast<float>(0x7FC00000u));
  result.message.resize(bound + kMessageOverhead, before);
  MessageWriter writer(result.message, {.step = 3, .schema = 5, .sender = 7});
  result.code = outcome([&] {
    if (in_place) {
      result.info = writer.add(input, result.decoded);
    } else {
      const std::span<std::byte> room = writer.room();
      result.info = encode_frame(input, room, result.decoded);
      require(result.info.bytes <= bound, "a frame is within its bound");
      writer.settle(input.tensor, room.first(result.info.bytes));
    }
  });
  result.message.resize(writer.finish());
  return result;
}

/// What `decoded` promised is what arrives, and nothing else.
void check_received(const FrameInput& input, const Encoded& encoded) {
  const std::vector<Entries> all = decode_entries(CheckedMessage(encoded.message), kLargest);
  require(all.size() == (encoded.info.bytes > 0 ? 1u : 0u), "a frame, or none when it is empty");
  const Entries none;
  const Entries& received = all.empty() ? none : all[0];
  require(all.empty() || (received.tensor == input.tensor && received.elements == input.elements),
          "tensor and size arrive");
  require(received.indices.size() == encoded.info.entries, "info counts the entries");

  const bool dense = encoded.info.coding == IndexCoding::dense && !all.empty();
  std::size_t at = 0;
  for (std::size_t i = 0; i < input.values.size(); ++i) {
    const std::uint32_t index =
        input.indices.empty() ? static_cast<std::uint32_t>(i) : input.indices[i];
    const float decoded = encoded.decoded[i];
    require(std::isfinite(decoded), "decoded values are finite");
    require(decoded == 0.0f || std::signbit(decoded) == std::signbit(input.values[i]),
            "signs stay");
    if (input.value_type == ValueType::fp32) require(decoded == input.values[i], "fp32 is exact");
    if (decoded == 0.0f && !dense) continue;
    for (; dense && at < index; ++at) require(received.values[at] == 0.0f, "the rest is zero");
    require(at < received.indices.size() && received.indices[at] == index, "the entry arrives");
    require(fuzz::same_bits({&received.values[at], 1}, {&decoded, 1}), "its value arrives");
    ++at;
  }
  for (; dense && at < received.values.size(); ++at) {
    require(received.values[at] == 0.0f, "the rest is zero");
  }
  require(at == received.indices.size(), "nothing else arrives");
}

void check_streamed(const FrameInput& input) {
  const auto is_zero = [](float value) { return value == 0.0f; };
  const FrameInfo planned{
      .tensor = input.tensor, .elements = input.elements, .entries = input.indices.size()};
  if (input.value_type != ValueType::fp32 || !wire::FrameStream::suits(planned, input.coding) ||
      std::any_of(input.values.begin(), input.values.end(), is_zero)) {
    return;
  }
  const std::size_t bound =
      frame_bound(input.elements, input.values.size(), input.value_type, input.coding);
  std::vector<std::byte> expected(bound);
  std::vector<float> decoded(input.values.size());
  expected.resize(encode_frame(input, expected, decoded).bytes);
  for (const Target& target : targets()) {
    if (!target.supported) continue;
    std::vector<std::byte> out(bound);
    wire::FrameStream frame(planned, wire::rice_kernels(target.name), out);
    frame.add(input.indices, input.values);
    const FrameInfo info = frame.finish();
    if (input.coding == IndexCoding::automatic && !wire::rice_is_smallest(info)) continue;
    require(info.coding == IndexCoding::rice, "a stream is of Rice codes");
    out.resize(info.bytes);
    require(out == expected, "a stream has the bytes of a frame");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const Case made = make_case(fuzz::Input({data, size}));
  const FrameInput& input = made.input;
  check_streamed(input);
  const Encoded first = encode(input, false, std::byte{0x00});
  const Encoded second = encode(input, true, std::byte{0xFF});
  require(first.code == second.code, "encoding is deterministic");
  if (first.code != ErrorCode::ok) {
    require(first.code == ErrorCode::invalid_argument && !wire::says_zero(input.value_type) &&
                input.coding == IndexCoding::dense && input.values.size() < input.elements,
            "only partial dense frames of values that cannot be zero are refused");
    return 0;
  }
  require(first.message == second.message, "encoding is deterministic");
  require(fuzz::same_bits(first.decoded, second.decoded), "decoding is deterministic");
  check_received(input, first);
  return 0;
}
