// Messages with known contents, and damaged ones with the error each must give. Made by the tests,
// and kept as files in tests/golden, so that a change of the format cannot pass unnoticed.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "dgc/dgc.h"

namespace dgc::test {

struct Sample {
  std::string name;
  std::vector<std::byte> bytes;
  ErrorCode error = ErrorCode::ok;  // what a decoder must say
};

/// A generator whose numbers are the same everywhere, unlike <random>'s distributions.
class Lcg {
 public:
  explicit Lcg(std::uint64_t seed) : state_(seed) {}
  std::uint32_t next() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::uint32_t>(state_ >> 33);
  }
  /// In (-1, 1), never zero.
  float value() {
    const float magnitude = static_cast<float>(next() % 65535 + 1) / 65536.0f;
    return (next() & 1) != 0 ? magnitude : -magnitude;
  }

 private:
  std::uint64_t state_;
};

inline std::vector<std::byte> message_of(const std::vector<FrameInput>& inputs,
                                         const MessageHeader& header = {
                                             .step = 7, .schema = 0xC0FFEE, .sender = 3}) {
  std::size_t size = kMessageOverhead + (header.notice ? notice_bytes(*header.notice) : 0);
  for (const FrameInput& in : inputs)
    size += frame_bound(in.elements, in.values.size(), in.value_type, in.coding);
  std::vector<std::byte> out(size);
  MessageWriter writer(out, header);
  for (const FrameInput& in : inputs) {
    std::vector<float> decoded(in.values.size());
    writer.add(in, decoded);
  }
  out.resize(writer.finish());
  return out;
}

/// A notice as text, for listings: bucket, flags, hash, presence bits, code and cause.
std::string listing_of(const Notice& notice);

/// One message for each value type and coding, and some for the corners of the format.
std::vector<Sample> valid_samples();

/// One message for each way of being wrong, checksum valid except where that is the point.
std::vector<Sample> damaged_samples();

}  // namespace dgc::test
