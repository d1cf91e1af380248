// Messages: a header, the frames of one bucket or step, a checksum. docs/format.md, "Messages".
#include <fmt/format.h>
#include <xxhash.h>

#include <string>

#include "dgc/error.h"
#include "dgc/wire.h"
#include "wire/bits.h"
#include "wire/frame.h"

namespace dgc {
namespace {

using namespace wire;

constexpr std::uint32_t kMagic = 0x4D434744;  // "DGCM"
constexpr std::uint8_t kVersion = 1;
constexpr std::size_t kHeaderBytes = 32;
constexpr std::size_t kTrailerBytes = 8;
static_assert(kHeaderBytes + kTrailerBytes == kMessageOverhead);

struct Parsed {
  MessageHeader header;
  std::uint32_t frames = 0;
  std::span<const std::byte> body;
};

[[noreturn]] void reject(const char* operation, ErrorCode code, std::string subject,
                         std::string problem) {
  throw Error(code, operation, std::move(subject), std::move(problem),
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
      return "has a block scale that is NaN, negative or out of range";
    case ErrorCode::nonfinite_value:
      return "holds a NaN or an infinity";
    default:
      return "is malformed";
  }
}

Parsed parse_message(std::span<const std::byte> message, const char* operation) {
  const auto fail = [operation](ErrorCode code, std::string problem) {
    reject(operation, code, "message", std::move(problem));
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
    fail(ErrorCode::bad_version,
         fmt::format("version {}, this library reads {}", load<std::uint8_t>(p + 4), kVersion));
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
  if (load<std::uint8_t>(p + 5) != 0) fail(ErrorCode::reserved_bits, "reserved byte 5 is not zero");
  Parsed parsed;
  parsed.header.sender = load<std::uint16_t>(p + 6);
  parsed.header.schema = load<std::uint32_t>(p + 8);
  parsed.header.step = load<std::uint64_t>(p + 16);
  parsed.frames = load<std::uint32_t>(p + 12);
  parsed.body = message.subspan(kHeaderBytes, length - kMessageOverhead);
  return parsed;
}

/// Parses and validates every frame, then hands each to `visit`.
template <typename Visit>
Parsed visit_frames(std::span<const std::byte> message, const char* operation, Visit&& visit) {
  const Parsed parsed = parse_message(message, operation);
  std::span<const std::byte> rest = parsed.body;
  std::int64_t last_tensor = -1;
  for (std::uint32_t i = 0; i < parsed.frames; ++i) {
    FrameView frame;
    ErrorCode code = parse_frame(rest, frame);
    if (code == ErrorCode::ok) code = validate_frame(frame);
    if (code != ErrorCode::ok) {
      reject(operation, code, fmt::format("frame {} (tensor {})", i, frame.info.tensor),
             describe(code));
    }
    if (frame.info.tensor <= last_tensor) {
      reject(operation, ErrorCode::frame_order, fmt::format("frame {}", i),
             fmt::format("tensor {} follows tensor {}", frame.info.tensor, last_tensor));
    }
    last_tensor = frame.info.tensor;
    visit(frame);
    rest = rest.subspan(frame.info.bytes);
  }
  if (!rest.empty()) {
    reject(operation, ErrorCode::trailing_bytes, "message",
           fmt::format("{} bytes follow the last of its {} frames", rest.size(), parsed.frames));
  }
  return parsed;
}

/// The frames of a message that visit_frames accepted, without checks.
template <typename Visit>
void revisit_frames(const Parsed& parsed, Visit&& visit) {
  std::span<const std::byte> rest = parsed.body;
  for (std::uint32_t i = 0; i < parsed.frames; ++i) {
    FrameView frame;
    parse_frame(rest, frame);
    visit(frame);
    rest = rest.subspan(frame.info.bytes);
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
MessageHeader add_message(std::span<const std::byte> message,
                          std::span<const std::span<float>> targets, const AlphaOf& alpha_of) {
  const Parsed parsed = visit_frames(message, "decode", [&](const FrameView& frame) {
    const std::uint32_t tensor = frame.info.tensor;
    if (tensor >= targets.size()) {
      throw Error(ErrorCode::unknown_tensor, "decode", fmt::format("tensor {}", tensor),
                  fmt::format("there are {} tensors here", targets.size()),
                  "sender and receiver must have the same model");
    }
    if (targets[tensor].size() != frame.info.elements) {
      throw Error(ErrorCode::shape_mismatch, "decode", fmt::format("tensor {}", tensor),
                  fmt::format("{} elements in the message, {} here", frame.info.elements,
                              targets[tensor].size()),
                  "sender and receiver must have the same model");
    }
  });
  revisit_frames(parsed, [&](const FrameView& frame) {
    add_frame(frame, targets[frame.info.tensor], alpha_of(frame.info.tensor));
  });
  return parsed.header;
}

}  // namespace

MessageWriter::MessageWriter(std::span<std::byte> out, const MessageHeader& header)
    : out_(out), size_(kHeaderBytes) {
  if (out.size() < kMessageOverhead) {
    throw Error(ErrorCode::buffer_too_small, "encode", "message",
                fmt::format("{} bytes are fewer than the {} of an empty message", out.size(),
                            kMessageOverhead));
  }
  std::byte* p = out.data();
  store(p, kMagic);
  store(p + 4, kVersion);
  store(p + 5, std::uint8_t{0});
  store(p + 6, header.sender);
  store(p + 8, header.schema);
  store(p + 16, header.step);
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

void MessageWriter::append(std::uint32_t tensor, std::span<const std::byte> frame) {
  if (frame.empty()) return;
  check_order(tensor);
  if (frame.size() > out_.size() - size_ - kTrailerBytes) {
    throw Error(ErrorCode::buffer_too_small, "encode", fmt::format("tensor {}", tensor),
                fmt::format("a frame of {} bytes does not fit", frame.size()));
  }
  std::memcpy(out_.data() + size_, frame.data(), frame.size());
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

MessageInfo inspect_message(std::span<const std::byte> message) {
  MessageInfo info;
  info.header = visit_frames(message, "inspect", [&](const FrameView& frame) {
                  info.frames.push_back(frame.info);
                }).header;
  info.bytes = message.size();
  return info;
}

MessageHeader decode_add(std::span<const std::byte> message,
                         std::span<const std::span<float>> targets, float alpha) {
  return add_message(message, targets, [alpha](std::uint32_t) { return alpha; });
}

MessageHeader decode_add(std::span<const std::byte> message,
                         std::span<const std::span<float>> targets, std::span<const float> alphas) {
  if (alphas.size() != targets.size()) {
    throw Error(ErrorCode::shape_mismatch, "decode", "alphas",
                fmt::format("{} factors for {} tensors", alphas.size(), targets.size()));
  }
  return add_message(message, targets, [alphas](std::uint32_t tensor) { return alphas[tensor]; });
}

std::vector<Entries> decode_entries(std::span<const std::byte> message, std::uint64_t max_entries) {
  std::uint64_t total = 0;
  const Parsed parsed = visit_frames(message, "decode", [&](const FrameView& frame) {
    total += frame.info.entries;
    if (total > max_entries) {
      throw Error(ErrorCode::limit_exceeded, "decode", fmt::format("tensor {}", frame.info.tensor),
                  fmt::format("more than {} entries", max_entries), "raise the limit");
    }
  });
  std::vector<Entries> all;
  revisit_frames(parsed, [&](const FrameView& frame) {
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
