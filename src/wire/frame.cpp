// Frames: the entries of one tensor. The encoder leaves out what would decode to zero, then takes
// the index coding that makes the frame smallest. The decoder reads the header (parse_frame), then
// checks every value and every position (validate_frame) before anybody decodes. docs/format.md,
// "Frames"; the paper (section 3.1) has 16-bit zero runs and 32-bit values alone.
#include "wire/frame.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "wire/bits.h"

namespace dgc {
namespace {

using namespace wire;

constexpr std::size_t kMaxFrameHeader = 5 + 5 + 1 + 5 + 5;

[[noreturn]] void fail(ErrorCode code, const FrameInput& input, std::string problem,
                       std::string hint = {}) {
  throw Error(code, "encode", fmt::format("tensor {}", input.tensor), std::move(problem),
              std::move(hint));
}

/// Writes a frame whose parts are final: `values` all belong in it.
FrameInfo write_frame(const FrameInput& input, const IndexPlan& plan,
                      std::span<const std::uint32_t> indices, std::span<const float> values,
                      std::span<std::byte> out, float* decoded) {
  FrameInfo info{.tensor = input.tensor,
                 .elements = input.elements,
                 .entries = values.size(),
                 .value_type = input.value_type,
                 .coding = plan.coding};
  info.value_bytes = value_bytes(input.value_type, values.size());
  info.index_bytes = plan.bytes;
  const std::uint64_t body = body_bytes(info);
  if (body > kMaxElements) {
    fail(ErrorCode::limit_exceeded, input, fmt::format("a frame of {} bytes is too long", body),
         "split the tensor or lower the ratio");
  }
  info.bytes = varint_size(static_cast<std::uint32_t>(body)) + body;
  if (info.bytes > out.size()) {
    fail(ErrorCode::buffer_too_small, input,
         fmt::format("the frame takes {} bytes, the buffer has {}", info.bytes, out.size()),
         "size the buffer with frame_bound");
  }

  std::byte* const p = put_header(info, out.data());
  encode_values(input.value_type, values, p, decoded);
  encode_indices(plan, indices, input.elements, p + info.value_bytes);
  return info;
}

/// The coding asked for, or the smallest.
IndexPlan plan_for(const FrameInput& input, std::span<const std::uint32_t> indices) {
  if (input.coding != IndexCoding::automatic) {
    return plan_indices(input.coding, indices, input.elements);
  }
  IndexPlan best = smallest_plan(indices, input.elements);
  const bool can_be_dense = says_zero(input.value_type) || indices.size() == input.elements;
  const std::size_t values = value_bytes(input.value_type, indices.size());
  if (can_be_dense && value_bytes(input.value_type, input.elements) <= values + best.bytes)
    return {};
  return best;
}

/// Whether every entry decodes to something: if the smallest survives beside the largest,
/// everything survives in every block.
bool all_survive(const FrameInput& input) {
  const auto [smallest, largest] = magnitudes_of(input.values);
  return !vanishes(input.value_type, smallest, largest);
}

/// Entries that survive quantisation, as positions into the input. Dropping an entry moves later
/// ones to other blocks, so blocks are filled one entry at a time; within a block the largest
/// magnitude only grows, hence what vanished stays vanished.
std::vector<std::uint32_t> surviving(const FrameInput& input) {
  std::vector<std::uint32_t> kept;
  std::size_t block_begin = 0;
  float block_max = 0.0f;
  Vanishing in_block(input.value_type, block_max);
  for (std::size_t i = 0; i < input.values.size(); ++i) {
    if (kept.size() - block_begin == kBlock) {
      block_begin = kept.size();
      block_max = 0.0f;
    }
    const float magnitude = std::fabs(input.values[i]);
    const bool grows = magnitude > block_max;
    if (grows ? vanishes(input.value_type, magnitude, magnitude) : in_block(magnitude)) continue;
    kept.push_back(static_cast<std::uint32_t>(i));
    if (!grows) continue;
    block_max = magnitude;
    in_block = Vanishing(input.value_type, block_max);
    const auto block = kept.begin() + static_cast<std::ptrdiff_t>(block_begin);
    kept.erase(
        std::remove_if(block, kept.end(),
                       [&](std::uint32_t k) { return in_block(std::fabs(input.values[k])); }),
        kept.end());
  }
  return kept;
}

FrameInfo encode_dense(const FrameInput& input, std::span<std::byte> out,
                       std::span<float> decoded) {
  if (input.values.size() == input.elements) {
    return write_frame(input, IndexPlan{}, {}, input.values, out, decoded.data());
  }
  if (!says_zero(input.value_type)) {
    fail(ErrorCode::invalid_argument, input,
         fmt::format("a dense frame of {} values must hold all {} elements, not {}",
                     name_of(input.value_type), input.elements, input.values.size()),
         "use IndexCoding::automatic");
  }
  std::vector<float> all(input.elements, 0.0f);
  for (std::size_t i = 0; i < input.indices.size(); ++i) all[input.indices[i]] = input.values[i];
  std::vector<float> all_decoded(input.elements);
  const FrameInfo info = write_frame(input, IndexPlan{}, {}, all, out, all_decoded.data());
  if (decoded.empty()) return info;
  for (std::size_t i = 0; i < input.indices.size(); ++i) decoded[i] = all_decoded[input.indices[i]];
  return info;
}

FrameInfo encode_sparse(const FrameInput& input, std::span<std::byte> out,
                        std::span<float> decoded) {
  // Without room for what they decode to, values are fp32 and not zero.
  if (decoded.empty() || all_survive(input)) {
    const IndexPlan plan = plan_for(input, input.indices);
    if (plan.coding == IndexCoding::dense) return encode_dense(input, out, decoded);
    return write_frame(input, plan, input.indices, input.values, out, decoded.data());
  }

  const std::vector<std::uint32_t> kept = surviving(input);
  std::fill(decoded.begin(), decoded.end(), 0.0f);
  if (kept.empty()) return {};
  std::vector<std::uint32_t> indices(kept.size());
  std::vector<float> values(kept.size());
  std::vector<float> kept_decoded(kept.size());
  for (std::size_t i = 0; i < kept.size(); ++i) {
    indices[i] = input.indices[kept[i]];
    values[i] = input.values[kept[i]];
  }
  FrameInput reduced = input;
  reduced.indices = indices;
  reduced.values = values;
  const IndexPlan plan = plan_for(reduced, indices);
  const FrameInfo info =
      plan.coding == IndexCoding::dense
          ? encode_dense(reduced, out, kept_decoded)
          : write_frame(reduced, plan, indices, values, out, kept_decoded.data());
  for (std::size_t i = 0; i < kept.size(); ++i) decoded[kept[i]] = kept_decoded[i];
  return info;
}

/// Every element in order, without an index list.
FrameInfo encode_whole(const FrameInput& input, std::span<std::byte> out,
                       std::span<float> decoded) {
  const bool dense = input.coding == IndexCoding::dense ||
                     (input.coding == IndexCoding::automatic && all_survive(input));
  if (dense) return encode_dense(input, out, decoded);
  std::vector<std::uint32_t> indices(input.elements);
  std::iota(indices.begin(), indices.end(), 0u);
  FrameInput listed = input;
  listed.indices = indices;
  return encode_sparse(listed, out, decoded);
}

void check_order(const FrameInput& input) {
  const std::span<const std::uint32_t> indices = input.indices;
  if (indices.empty()) return;
  // First without leaving the loop, which vectorises; only then for what to say.
  bool increasing = true;
  for (std::size_t i = 1; i < indices.size(); ++i) increasing &= indices[i - 1] < indices[i];
  for (std::size_t i = 1; !increasing && i < indices.size(); ++i) {
    if (indices[i - 1] < indices[i]) continue;
    fail(ErrorCode::index_not_increasing, input,
         fmt::format("index {} is out of order", indices[i]),
         "sort the indices and drop duplicates");
  }
  if (indices.back() >= input.elements) {
    fail(ErrorCode::index_out_of_range, input,
         fmt::format("index {} in a tensor of {} elements", indices.back(), input.elements));
  }
}

void check_input(const FrameInput& input, std::size_t decoded) {
  if (input.elements > kMaxElements) {
    fail(ErrorCode::limit_exceeded, input,
         fmt::format("{} elements exceed 2^32 - 1", input.elements), "split the tensor");
  }
  if (decoded != input.values.size()) {
    fail(ErrorCode::shape_mismatch, input,
         fmt::format("{} values but room for {} decoded ones", input.values.size(), decoded));
  }
  const bool whole = input.indices.empty() && input.values.size() == input.elements;
  if (!whole && input.indices.size() != input.values.size()) {
    fail(ErrorCode::shape_mismatch, input,
         fmt::format("{} indices for {} values", input.indices.size(), input.values.size()));
  }
  check_order(input);
  if (all_finite(input.values)) return;
  for (std::size_t i = 0; i < input.values.size(); ++i) {
    if (!std::isfinite(input.values[i])) {
      fail(ErrorCode::nonfinite_value, input,
           fmt::format("value {} of entry {} is not finite", input.values[i], i));
    }
  }
}

}  // namespace

std::size_t frame_bound(std::uint64_t elements, std::uint64_t entries, ValueType type,
                        IndexCoding coding) noexcept {
  const auto sparse = [&](IndexCoding c) {
    return value_bytes(type, entries) + index_bound(c, entries, elements);
  };
  std::size_t bytes = 0;
  if (coding == IndexCoding::dense) {
    bytes = value_bytes(type, elements);
  } else if (coding == IndexCoding::automatic) {
    bytes = std::min(
        {sparse(IndexCoding::rice), sparse(IndexCoding::runs), sparse(IndexCoding::bitmap)});
    // Where nothing says zero, dense frames do not count: a single zero rules them out.
    if (says_zero(type)) bytes = std::min(bytes, value_bytes(type, elements));
  } else {
    bytes = sparse(coding);
  }
  return kMaxFrameHeader + bytes;
}

FrameInfo encode_frame(const FrameInput& input, std::span<std::byte> out,
                       std::span<float> decoded) {
  check_input(input, decoded.size());
  return encode_checked(input, out, decoded);
}

FrameInfo wire::encode_checked(const FrameInput& input, std::span<std::byte> out,
                               std::span<float> decoded) {
  if (input.values.empty()) return {};
  if (decoded.empty()) decoded = {};  // a vector without elements may have memory all the same
  if (input.indices.empty()) return encode_whole(input, out, decoded);
  return input.coding == IndexCoding::dense ? encode_dense(input, out, decoded)
                                            : encode_sparse(input, out, decoded);
}

namespace wire {

std::uint64_t body_bytes(const FrameInfo& info) noexcept {
  const auto size = [](std::uint64_t x) { return varint_size(static_cast<std::uint32_t>(x)); };
  return varint_size(info.tensor) + 1 + size(info.elements) +
         (info.coding == IndexCoding::dense ? 0 : size(info.entries)) + info.value_bytes +
         info.index_bytes;
}

std::byte* put_header(const FrameInfo& info, std::byte* out) noexcept {
  out = put_varint(out, static_cast<std::uint32_t>(body_bytes(info)));
  out = put_varint(out, info.tensor);
  *out++ = static_cast<std::byte>(kFrameVersion << 6 | static_cast<unsigned>(info.value_type) << 3 |
                                  static_cast<unsigned>(info.coding));
  out = put_varint(out, static_cast<std::uint32_t>(info.elements));
  if (info.coding == IndexCoding::dense) return out;
  return put_varint(out, static_cast<std::uint32_t>(info.entries));
}

namespace {

/// Moves `in` past a minimal varint of at most 32 bits.
ErrorCode take_varint(std::span<const std::byte>& in, std::uint32_t& value) noexcept {
  std::uint64_t result = 0;
  for (std::size_t i = 0; i < 5; ++i) {
    if (i == in.size()) return ErrorCode::truncated;
    const auto byte = std::to_integer<std::uint64_t>(in[i]);
    result |= (byte & 0x7F) << (7 * i);
    if (byte >= 0x80) continue;
    if ((byte == 0 && i > 0) || result > kMaxElements) return ErrorCode::bad_varint;
    value = static_cast<std::uint32_t>(result);
    in = in.subspan(i + 1);
    return ErrorCode::ok;
  }
  return ErrorCode::bad_varint;
}

}  // namespace

ErrorCode parse_frame(std::span<const std::byte> in, FrameView& frame) noexcept {
  const std::size_t available = in.size();
  std::uint32_t body = 0;
  if (const ErrorCode code = take_varint(in, body); code != ErrorCode::ok) return code;
  if (body > in.size()) return ErrorCode::bad_length;
  frame.info.bytes = available - in.size() + body;
  in = in.first(body);

  if (const ErrorCode code = take_varint(in, frame.info.tensor); code != ErrorCode::ok) return code;
  if (in.empty()) return ErrorCode::truncated;
  const auto codes = std::to_integer<unsigned>(in[0]);
  in = in.subspan(1);
  if (codes >> 6 != kFrameVersion) return ErrorCode::bad_version;
  if ((codes >> 3 & 7) > static_cast<unsigned>(ValueType::table4)) return ErrorCode::bad_value_type;
  if ((codes & 7) > static_cast<unsigned>(IndexCoding::dense)) return ErrorCode::bad_index_coding;
  frame.info.value_type = static_cast<ValueType>(codes >> 3 & 7);
  frame.info.coding = static_cast<IndexCoding>(codes & 7);

  std::uint32_t elements = 0;
  if (const ErrorCode code = take_varint(in, elements); code != ErrorCode::ok) return code;
  std::uint32_t entries = elements;
  if (frame.info.coding != IndexCoding::dense) {
    if (const ErrorCode code = take_varint(in, entries); code != ErrorCode::ok) return code;
  }
  if (entries == 0 || entries > elements) return ErrorCode::bad_count;
  frame.info.elements = elements;
  frame.info.entries = entries;
  frame.info.value_bytes = value_bytes(frame.info.value_type, entries);
  if (frame.info.value_bytes > in.size()) return ErrorCode::truncated;
  frame.values = in.first(frame.info.value_bytes);
  frame.indices = in.subspan(frame.info.value_bytes);
  frame.info.index_bytes = frame.indices.size();
  return ErrorCode::ok;
}

ErrorCode validate_frame(const FrameView& frame) noexcept {
  if (const ErrorCode code = frame.value_reader().validate(); code != ErrorCode::ok) return code;
  return frame.index_reader().validate(frame.info.entries);
}

}  // namespace wire
}  // namespace dgc
