// Messages: a header, a notice where ranks have more to say, the frames of one bucket or step, a
// checksum. docs/format.md, "Messages".
#include <fmt/format.h>
#include <xxhash.h>

#include <string>

#include "dgc/error.h"
#include "dgc/version.h"
#include "dgc/wire.h"
#include "wire/bits.h"
#include "wire/frame.h"
#include "wire/message.h"
#include "wire/notice.h"

namespace dgc {
namespace {

using namespace wire;

constexpr std::uint32_t kMagic = 0x4D434744;  // "DGCM"
constexpr std::uint8_t kVersion = 3;
constexpr std::size_t kHeaderBytes = 32;
constexpr std::size_t kTrailerBytes = 8;
static_assert(kHeaderBytes + kTrailerBytes == kMessageOverhead);
constexpr std::uint8_t kHasNotice = 1;  // in byte 5 of the header

[[noreturn]] void reject(ErrorCode code, std::string subject, std::string problem) {
  throw Error(code, "decode", std::move(subject), std::move(problem),
              "the message is damaged or not from this version of dgc; nothing was applied");
}

const char* describe(ErrorCode code) {
  switch (code) {
    case ErrorCode::truncated:
      return "ends early";
    case ErrorCode::bad_version:
      return "has a frame version other than 1";
    case ErrorCode::reserved_bits:
      return "has reserved or padding bits set";
    case ErrorCode::trailing_bytes:
      return "has bytes after its last entry";
    case ErrorCode::bad_length:
      return "claims more bytes than the message has";
    case ErrorCode::bad_varint:
      return "has an overlong or too large integer";
    case ErrorCode::bad_index_coding:
      return "has an unknown index coding";
    case ErrorCode::bad_value_type:
      return "has an unknown value type";
    case ErrorCode::bad_count:
      return "has a number of entries that contradicts its contents";
    case ErrorCode::index_out_of_range:
      return "has an index past the end of its tensor";
    case ErrorCode::bad_scale:
      return "has a block scale or table that is NaN, negative or out of range";
    case ErrorCode::nonfinite_value:
      return "holds a NaN or an infinity";
    default:
      return "is malformed";
  }
}

/// Header and checksum. Returns flags, frames, and what lies between header and trailer.
struct Envelope {
  MessageHeader header;
  std::uint8_t flags = 0;
  std::uint32_t frames = 0;
  std::span<const std::byte> contents;
};

Envelope open_envelope(std::span<const std::byte> message) {
  const auto fail = [](ErrorCode code, std::string problem) {
    reject(code, "message", std::move(problem));
  };
  // Magic first: a file of another kind is told apart from a damaged message.
  if (message.size() >= 4 && load<std::uint32_t>(message.data()) != kMagic) {
    fail(ErrorCode::bad_magic, "does not begin with \"DGCM\"");
  }
  if (message.size() < kMessageOverhead) {
    fail(ErrorCode::truncated, fmt::format("{} bytes are fewer than the {} of an empty message",
                                           message.size(), kMessageOverhead));
  }
  const std::byte* p = message.data();
  if (load<std::uint8_t>(p + 4) != kVersion) {
    fail(ErrorCode::bad_version, fmt::format("version {}, dgc " DGC_VERSION " reads {}",
                                             load<std::uint8_t>(p + 4), kVersion));
  }
  const auto length = load<std::uint64_t>(p + 24);
  if (length > message.size()) {
    fail(ErrorCode::truncated, fmt::format("{} of {} bytes are here", message.size(), length));
  }
  if (length < kMessageOverhead) fail(ErrorCode::bad_length, fmt::format("length {}", length));
  if (length < message.size()) {
    fail(ErrorCode::trailing_bytes,
         fmt::format("{} bytes follow its end", message.size() - length));
  }
  const auto stored = load<std::uint64_t>(p + length - kTrailerBytes);
  const std::uint64_t computed = XXH64(p, length - kTrailerBytes, 0);
  if (stored != computed) {
    fail(ErrorCode::checksum_mismatch,
         fmt::format("checksum {:016x}, contents give {:016x}", stored, computed));
  }
  Envelope envelope;
  envelope.flags = load<std::uint8_t>(p + 5);
  if ((envelope.flags & ~kHasNotice) != 0) {
    fail(ErrorCode::reserved_bits, "a reserved bit of byte 5 is set");
  }
  envelope.header.sender = load<std::uint16_t>(p + 6);
  envelope.header.schema = load<std::uint32_t>(p + 8);
  envelope.header.step = load<std::uint64_t>(p + 16);
  envelope.frames = load<std::uint32_t>(p + 12);
  envelope.contents = message.subspan(kHeaderBytes, length - kMessageOverhead);
  return envelope;
}

/// The frames of a checked message, without checks.
template <typename Visit>
void visit_frames(const CheckedMessage& message, Visit&& visit) {
  std::span<const std::byte> rest = message.body();
  for (const FrameInfo& info : message.frames()) {
    FrameView frame;
    parse_frame(rest, frame);
    visit(frame);
    rest = rest.subspan(info.bytes);
  }
}

/// Targets are far larger than any cache and positions are scattered: the lines of a block are
/// asked for, the next block is decoded while they arrive, and only then is the first one added.
void add_frame(const FrameView& frame, std::span<float> target, float alpha) noexcept {
  struct Block {
    std::uint32_t indices[kBlock];
    float values[kBlock];
    std::size_t count = 0;
  };
  Block blocks[2];
  float* const out = target.data();
  // Where cache lines have two entries each, the hardware's own prefetch is ahead of ours.
  const bool sparse = frame.info.elements / frame.info.entries >= 8;
  const ValueReader values = frame.value_reader();
  IndexReader indices = frame.index_reader();
  const auto fetch = [&](std::size_t b) {
    Block& block = blocks[b % 2];
    block.count = values.decode_block(b, block.values);
    indices.next_block(block.count, block.indices);
    if (!sparse) return;
    for (std::size_t i = 0; i < block.count; ++i) __builtin_prefetch(out + block.indices[i], 1);
  };
  const auto add = [&](std::size_t b) {
    const Block& block = blocks[b % 2];
    for (std::size_t i = 0; i < block.count; ++i) out[block.indices[i]] += alpha * block.values[i];
  };
  const std::size_t count = blocks_of(frame.info.entries);
  fetch(0);
  for (std::size_t b = 1; b < count; ++b) {
    fetch(b);
    add(b - 1);
  }
  add(count - 1);
}

template <typename AlphaOf>
void add_message(const CheckedMessage& message, std::span<const std::span<float>> targets,
                 const AlphaOf& alpha_of, bool some = false) {
  const auto left_out = [&](std::uint32_t tensor) { return some && targets[tensor].empty(); };
  for (const FrameInfo& frame : message.frames()) {
    if (frame.tensor >= targets.size()) {
      throw Error(ErrorCode::unknown_tensor, "decode", fmt::format("tensor {}", frame.tensor),
                  fmt::format("there are {} tensors here", targets.size()),
                  "sender and receiver must have the same model");
    }
    if (targets[frame.tensor].size() != frame.elements && !left_out(frame.tensor)) {
      throw Error(ErrorCode::shape_mismatch, "decode", fmt::format("tensor {}", frame.tensor),
                  fmt::format("{} elements in the message, {} here", frame.elements,
                              targets[frame.tensor].size()),
                  "sender and receiver must have the same model");
    }
  }
  visit_frames(message, [&](const FrameView& frame) {
    if (left_out(frame.info.tensor)) return;
    add_frame(frame, targets[frame.info.tensor], alpha_of(frame.info.tensor));
  });
}

}  // namespace

MessageWriter::MessageWriter(std::span<std::byte> out, const MessageHeader& header)
    : out_(out), size_(kHeaderBytes + (header.notice ? notice_bytes(*header.notice) : 0)) {
  if (out.size() < size_ + kTrailerBytes) {
    throw Error(ErrorCode::buffer_too_small, "encode", "message",
                fmt::format("{} bytes are fewer than the {} of a message without frames",
                            out.size(), size_ + kTrailerBytes));
  }
  std::byte* p = out.data();
  store(p, kMagic);
  store(p + 4, kVersion);
  store(p + 5, header.notice ? kHasNotice : std::uint8_t{0});
  store(p + 6, header.sender);
  store(p + 8, header.schema);
  store(p + 16, header.step);
  if (header.notice) write_notice(*header.notice, p + kHeaderBytes);
}

void MessageWriter::check_order(std::uint32_t tensor) {
  if (tensor <= last_tensor_) {
    throw Error(ErrorCode::frame_order, "encode", fmt::format("tensor {}", tensor),
                fmt::format("follows tensor {}", last_tensor_),
                "add frames in increasing tensor order");
  }
}

FrameInfo MessageWriter::add(const FrameInput& input, std::span<float> decoded) {
  check_order(input.tensor);
  const FrameInfo info =
      encode_frame(input, out_.subspan(size_, out_.size() - size_ - kTrailerBytes), decoded);
  if (info.bytes == 0) return info;
  size_ += info.bytes;
  last_tensor_ = input.tensor;
  ++frames_;
  return info;
}

std::span<std::byte> MessageWriter::room() const noexcept {
  return out_.subspan(size_, out_.size() - size_ - kTrailerBytes);
}

void MessageWriter::settle(std::uint32_t tensor, std::span<const std::byte> frame) {
  if (frame.empty()) return;
  check_order(tensor);
  if (frame.data() != out_.data() + size_) {
    std::memmove(out_.data() + size_, frame.data(), frame.size());
  }
  size_ += frame.size();
  last_tensor_ = tensor;
  ++frames_;
}

std::size_t MessageWriter::finish() {
  std::byte* p = out_.data();
  store(p + 12, frames_);
  store(p + 24, static_cast<std::uint64_t>(size_ + kTrailerBytes));
  store(p + size_, static_cast<std::uint64_t>(XXH64(p, size_, 0)));
  return size_ + kTrailerBytes;
}

CheckedMessage::CheckedMessage(std::span<const std::byte> message) : bytes_(message) {
  Envelope envelope = open_envelope(message);
  header_ = std::move(envelope.header);
  body_ = envelope.contents;
  if ((envelope.flags & kHasNotice) != 0) {
    header_.notice.emplace();
    std::size_t size = 0;
    const ErrorCode code = read_notice(body_, *header_.notice, size);
    if (code != ErrorCode::ok) reject(code, "notice", describe(code));
    if (header_.notice->failure && envelope.frames > 0) {
      reject(ErrorCode::bad_count, "notice", "tells of a failure, and frames follow");
    }
    body_ = body_.subspan(size);
  }
  std::span<const std::byte> rest = body_;
  std::int64_t last_tensor = -1;
  for (std::uint32_t i = 0; i < envelope.frames; ++i) {
    FrameView frame;
    ErrorCode code = parse_frame(rest, frame);
    if (code == ErrorCode::ok) code = validate_frame(frame);
    if (code != ErrorCode::ok) {
      reject(code, fmt::format("frame {} (tensor {})", i, frame.info.tensor), describe(code));
    }
    if (frame.info.tensor <= last_tensor) {
      reject(ErrorCode::frame_order, fmt::format("frame {}", i),
             fmt::format("tensor {} follows tensor {}", frame.info.tensor, last_tensor));
    }
    last_tensor = frame.info.tensor;
    frames_.push_back(frame.info);
    rest = rest.subspan(frame.info.bytes);
  }
  if (!rest.empty()) {
    reject(ErrorCode::trailing_bytes, "message",
           fmt::format("{} bytes follow the last of its {} frames", rest.size(), envelope.frames));
  }
}

void decode_add(const CheckedMessage& message, std::span<const std::span<float>> targets,
                float alpha) {
  add_message(message, targets, [alpha](std::uint32_t) { return alpha; });
}

void decode_add(const CheckedMessage& message, std::span<const std::span<float>> targets,
                std::span<const float> alphas) {
  if (alphas.size() != targets.size()) {
    throw Error(ErrorCode::shape_mismatch, "decode", "alphas",
                fmt::format("{} factors for {} tensors", alphas.size(), targets.size()));
  }
  add_message(message, targets, [alphas](std::uint32_t tensor) { return alphas[tensor]; });
}

void wire::add_some(const CheckedMessage& message, std::span<const std::span<float>> targets,
                    std::span<const float> alphas) {
  add_message(
      message, targets, [alphas](std::uint32_t tensor) { return alphas[tensor]; }, true);
}

std::vector<Entries> decode_entries(const CheckedMessage& message, std::uint64_t max_entries) {
  std::uint64_t total = 0;
  for (const FrameInfo& frame : message.frames()) {
    total += frame.entries;
    if (total > max_entries) {
      throw Error(ErrorCode::limit_exceeded, "decode", fmt::format("tensor {}", frame.tensor),
                  fmt::format("more than {} entries", max_entries), "raise the limit");
    }
  }
  std::vector<Entries> all;
  visit_frames(message, [&](const FrameView& frame) {
    Entries& entries = all.emplace_back();
    entries.tensor = frame.info.tensor;
    entries.elements = frame.info.elements;
    entries.indices.reserve(frame.info.entries);
    entries.values.reserve(frame.info.entries);
    frame.for_each_block([&](const std::uint32_t* indices, const float* values, std::size_t count) {
      entries.indices.insert(entries.indices.end(), indices, indices + count);
      entries.values.insert(entries.values.end(), values, values + count);
    });
  });
  return all;
}

}  // namespace dgc
