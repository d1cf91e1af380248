// The wire format: frames (one tensor) in messages (one bucket or one step). docs/format.md is the
// normative description; this header is the contract of the functions.
//
// Buffers belong to the caller. Nothing here allocates in proportion to untrusted fields, except
// `decode_entries`, which takes a limit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dgc/error.h"

namespace dgc {

/// How the values of a frame are stored. Independent of the index coding.
enum class ValueType : std::uint8_t {
  fp32 = 0,    ///< 32 bits, exact
  fp16 = 1,    ///< 16 bits, one power-of-two scale per block of 256
  bf16 = 2,    ///< 16 bits, no scale needed
  int8 = 3,    ///< 8 bits, one float scale per block of 256
  sign = 4,    ///< 1 bit, one float scale (the mean magnitude) per block of 256
  table2 = 5,  ///< 2 bits: a sign, and one of 2 magnitudes fitted to each block of 256
  table4 = 6,  ///< 4 bits: a sign, and one of 8 such magnitudes
};

/// How the positions of a frame are stored.
enum class IndexCoding : std::uint8_t {
  runs = 0,         ///< the paper's 16-bit zero runs
  rice = 1,         ///< Rice-coded gaps, one parameter per block of 256
  bitmap = 2,       ///< one bit per element of the tensor
  dense = 3,        ///< no positions: every element has a value
  automatic = 255,  ///< encoder only: whichever of the above is smallest
};

std::string_view name_of(ValueType type) noexcept;
std::string_view name_of(IndexCoding coding) noexcept;
/// All of them.
std::span<const ValueType> value_types() noexcept;
std::span<const IndexCoding> index_codings() noexcept;
/// Inverse of name_of. Throws Error(invalid_argument) that lists the accepted names.
ValueType parse_value_type(std::string_view name);
IndexCoding parse_index_coding(std::string_view name);

/// Tensor sizes and entry counts are 32-bit on the wire.
inline constexpr std::uint64_t kMaxElements = 0xFFFFFFFFu;

/// What to encode for one tensor: `values[i]` at `indices[i]`, indices strictly increasing and
/// below `elements`, values finite. No indices and `elements` values: the whole tensor in order.
struct FrameInput {
  std::uint32_t tensor = 0;
  std::uint64_t elements = 0;
  std::span<const std::uint32_t> indices;
  std::span<const float> values;
  ValueType value_type = ValueType::fp32;
  IndexCoding coding = IndexCoding::automatic;
};

/// What a frame holds and what each part of it costs.
struct FrameInfo {
  std::uint32_t tensor = 0;
  std::uint64_t elements = 0;
  std::uint64_t entries = 0;  ///< values in the frame; `elements` for dense frames
  ValueType value_type = ValueType::fp32;
  IndexCoding coding = IndexCoding::rice;
  std::uint64_t bytes = 0;        ///< the whole frame
  std::uint64_t value_bytes = 0;  ///< values with their scales
  std::uint64_t index_bytes = 0;  ///< positions with their Rice parameters
  std::uint64_t header_bytes() const { return bytes - value_bytes - index_bytes; }
};

/// What a rank tells the others with a bucket of a step, beside its frames.
struct Notice {
  std::uint32_t bucket = 0;
  std::vector<bool> present;  ///< by tensor of the bucket: this rank has a gradient of it
  bool stop = false;          ///< this rank wants to stop after this step
  bool nonfinite = false;     ///< a gradient is NaN or infinite, and the step is to be skipped
  std::optional<std::uint64_t> parameters;  ///< hash of the parameters, when it is due

  /// Why this rank gives up. Such a message has no frames.
  struct Failure {
    ErrorCode code = ErrorCode::internal;
    std::string text;  ///< cut after kLongestCause bytes on the wire
  };
  std::optional<Failure> failure;

  static constexpr std::size_t kLongestCause = 512;
};

/// Fields that travel with a message and mean nothing to the codec.
struct MessageHeader {
  std::uint64_t step = 0;
  std::uint32_t schema = 0;  ///< hash of the tensor set and options; 0 when unused
  std::uint16_t sender = 0;  ///< rank
  std::optional<Notice> notice = {};
};

/// Largest size of a frame with at most `entries` of `elements`. No input exceeds it.
std::size_t frame_bound(std::uint64_t elements, std::uint64_t entries, ValueType type,
                        IndexCoding coding) noexcept;

/// Bytes of a message beyond its frames and its notice.
inline constexpr std::size_t kMessageOverhead = 40;
/// Bytes of a notice.
std::size_t notice_bytes(const Notice& notice) noexcept;
/// The most that a notice without a failure takes, for a bucket of so many tensors.
std::size_t notice_bound(std::size_t tensors) noexcept;

/// Writes one frame to `out`, which must hold at least `frame_bound(…)` bytes.
///
/// `decoded` (same length as the input) receives what a receiver will add for each entry: the
/// caller keeps `value - decoded` as its quantisation error. Entries that would decode to zero are
/// left out of the frame and have `decoded == 0`: they must be treated as not sent.
/// When nothing is left to send, no byte is written and the returned info has `bytes == 0`. Frames
/// that are asked to be dense keep every element: zeros among signs decode to plus or minus the
/// scale, among table2 and table4 to plus or minus the smallest magnitude. Throws Error:
/// shape_mismatch, index_not_increasing, index_out_of_range, nonfinite_value, buffer_too_small,
/// invalid_argument (dense frames of sign, table2 and table4 must hold every element).
FrameInfo encode_frame(const FrameInput& input, std::span<std::byte> out, std::span<float> decoded);

/// Assembles a message in a caller-owned buffer. Frames must be added in increasing tensor order.
class MessageWriter {
 public:
  /// `out` must hold kMessageOverhead, the notice and all frames.
  MessageWriter(std::span<std::byte> out, const MessageHeader& header);
  /// Encodes a frame in place; see encode_frame.
  FrameInfo add(const FrameInput& input, std::span<float> decoded);
  /// The part of the buffer that is for frames, before there are any. Encode into it, wherever you
  /// like, then settle() each frame.
  std::span<std::byte> room() const noexcept;
  /// Appends a frame that encode_frame wrote to room(): copies nothing where it is in its place
  /// already, and moves it down otherwise. Frames must be settled in the order they lie in; empty
  /// ones are ignored.
  void settle(std::uint32_t tensor, std::span<const std::byte> frame);
  /// Writes length and checksum. Returns the size of the message.
  std::size_t finish();

 private:
  void check_order(std::uint32_t tensor);

  std::span<std::byte> out_;
  std::size_t size_;
  std::uint32_t frames_ = 0;
  std::int64_t last_tensor_ = -1;
};

/// A message that has been checked completely: checksum, structure, every index and value. Nothing
/// else makes one, and decoding takes nothing else. It refers to the bytes it was made of, which
/// have to stay as they are while it is used.
class CheckedMessage {
 public:
  /// Throws Error with the code of the first problem found.
  explicit CheckedMessage(std::span<const std::byte> message);

  const MessageHeader& header() const noexcept { return header_; }
  std::span<const FrameInfo> frames() const noexcept { return frames_; }
  std::span<const std::byte> bytes() const noexcept { return bytes_; }
  /// The frames themselves, one after the other.
  std::span<const std::byte> body() const noexcept { return body_; }

 private:
  std::span<const std::byte> bytes_;
  std::span<const std::byte> body_;
  MessageHeader header_;
  std::vector<FrameInfo> frames_;
};

/// Adds `alpha` times every entry of the message to its tensor: `targets[tensor][index]`. Throws
/// Error, with the targets untouched: shape_mismatch, unknown_tensor. Allocates nothing.
void decode_add(const CheckedMessage& message, std::span<const std::span<float>> targets,
                float alpha = 1.0f);
/// The same with a factor for each target.
void decode_add(const CheckedMessage& message, std::span<const std::span<float>> targets,
                std::span<const float> alphas);

struct Entries {
  std::uint32_t tensor = 0;
  std::uint64_t elements = 0;
  std::vector<std::uint32_t> indices;
  std::vector<float> values;
};

/// The entries of every frame. Throws Error(limit_exceeded) when the message holds more than
/// `max_entries` in all.
std::vector<Entries> decode_entries(const CheckedMessage& message, std::uint64_t max_entries);

}  // namespace dgc
