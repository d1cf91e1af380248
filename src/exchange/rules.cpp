#include "exchange/rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <vector>

namespace dgc::exchange {
namespace {

void check_header(const Rules& rules, const std::string& peer, std::size_t sender,
                  const MessageHeader& header) {
  const auto mismatch = [&](const char* what, std::uint64_t theirs, std::uint64_t ours) {
    if (theirs == ours) return;
    throw Error(ErrorCode::configuration_mismatch, rules.phase, peer,
                fmt::format("sent a message with {} {}, {} expected", what, theirs, ours),
                rules.hint);
  };
  mismatch("step", header.step, rules.step);
  mismatch("schema", header.schema, rules.schema);
  mismatch("sender", header.sender, sender);
  if (!header.notice) {
    throw Error(ErrorCode::configuration_mismatch, rules.phase, peer,
                "sent a message without a notice", "nothing was applied");
  }
  mismatch("bucket", header.notice->bucket, rules.notice.bucket);
  mismatch("tensors in its bucket", header.notice->present.size(), rules.notice.present.size());
}

void check_frames(const Rules& rules, const std::string& peer, std::span<const FrameInfo> frames) {
  auto next = rules.tensors.begin();
  for (const FrameInfo& frame : frames) {
    next = std::find_if(next, rules.tensors.end(),
                        [&](const Expected& e) { return e.tensor == frame.tensor; });
    if (next == rules.tensors.end()) {
      throw Error(ErrorCode::unknown_tensor, rules.phase, peer,
                  fmt::format("sent tensor {}, which is not of this bucket", frame.tensor),
                  "nothing was applied");
    }
    if (frame.elements == next->elements) continue;
    throw Error(ErrorCode::configuration_mismatch, rules.phase, peer,
                fmt::format("sent a message with tensor size {}, {} expected", frame.elements,
                            next->elements),
                "nothing was applied");
  }
}

}  // namespace

std::size_t message_size(std::span<const std::byte> bytes) noexcept {
  constexpr std::size_t kLengthAt = 24;
  std::uint64_t length = bytes.size();
  if (bytes.size() >= kMessageOverhead) {
    std::memcpy(&length, bytes.data() + kLengthAt, sizeof length);
  }
  return length < kMessageOverhead ? bytes.size() : std::min<std::uint64_t>(length, bytes.size());
}

std::uint64_t parcel_bound(std::size_t tensors, std::uint64_t contents) noexcept {
  return kMessageOverhead + notice_bound(tensors) +
         std::max<std::uint64_t>(contents, Notice::kLongestCause);
}

CheckedMessage checked_message(const Rules& rules, const std::string& peer,
                               std::span<const std::byte> bytes) {
  try {
    return CheckedMessage(bytes);
  } catch (const Error& error) {
    throw Error(error.code(), rules.phase, peer,
                fmt::format("sent a bad message at step {}: {}: {}", rules.step, error.subject(),
                            error.problem()),
                error.hint());
  }
}

void check_message(const Rules& rules, const std::string& peer, std::size_t sender,
                   const CheckedMessage& message) {
  check_header(rules, peer, sender, message.header());
  check_frames(rules, peer, message.frames());
}

Notice merged(std::span<const Notice* const> notices, std::uint64_t step) {
  Notice sum = *notices[0];
  std::vector<std::uint64_t> hashes;
  bool hashed = false;
  for (const Notice* theirs : notices) {
    sum.stop |= theirs->stop;
    sum.nonfinite |= theirs->nonfinite;
    for (std::size_t i = 0; i < sum.present.size(); ++i) {
      if (theirs->present[i]) sum.present[i] = true;
    }
    hashed |= theirs->parameters.has_value();
    hashes.push_back(theirs->parameters.value_or(0));
  }
  if (hashed) compare_hashes(hashes, step);
  return sum;
}

void compare_hashes(std::span<const std::uint64_t> hashes, std::uint64_t step) {
  std::map<std::uint64_t, int> votes;
  for (const std::uint64_t theirs : hashes) ++votes[theirs];
  if (votes.size() == 1) return;
  // The minority is suspected; between two it is the higher rank.
  const auto majority =
      std::max_element(votes.begin(), votes.end(), [&](const auto& a, const auto& b) {
        return a.second != b.second ? a.second < b.second
                                    : (a.first != hashes[0] && b.first == hashes[0]);
      });
  for (std::size_t rank = 0; rank < hashes.size(); ++rank) {
    if (hashes[rank] == majority->first) continue;
    throw Error(ErrorCode::diverged, "compare parameters", fmt::format("rank {}", rank),
                fmt::format("has other parameters than {} of {} ranks at step {}", majority->second,
                            hashes.size(), step),
                "go back to the last checkpoint; look for memory errors or different software on "
                "that rank");
  }
}

}  // namespace dgc::exchange
