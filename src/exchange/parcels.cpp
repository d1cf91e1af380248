// One round: everybody's message to everybody, with what each has to say of the bucket (wire.h,
// Notice). A rank that fails before it has a message sends its cause instead, so that all ranks
// know it in the same round and nobody waits.
#include "exchange/parcels.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace dgc::exchange {
namespace {

MessageHeader header_of(const Context& context, const Notice& notice) {
  return {.step = context.state.step(),
          .schema = context.compressor.options().schema,
          .sender = static_cast<std::uint16_t>(context.group.rank()),
          .notice = notice};
}

/// Where the message at the start of a parcel ends, by its own word; the check finds what is wrong.
std::size_t message_size(std::span<const std::byte> parcel) {
  constexpr std::size_t kLengthAt = 24;
  std::uint64_t length = parcel.size();
  if (parcel.size() >= kMessageOverhead) {
    std::memcpy(&length, parcel.data() + kLengthAt, sizeof length);
  }
  return length < kMessageOverhead ? parcel.size() : std::min<std::uint64_t>(length, parcel.size());
}

CheckedMessage checked(const Context& context, const char* phase, const std::string& peer,
                       std::span<const std::byte> bytes) {
  try {
    return CheckedMessage(bytes);
  } catch (const Error& error) {
    throw Error(error.code(), phase, peer,
                fmt::format("sent a bad message at step {}: {}: {}", context.state.step(),
                            error.subject(), error.problem()),
                error.hint());
  }
}

void check_header(const Context& context, const RoundSpec& spec, const std::string& peer,
                  std::size_t sender, const MessageHeader& header) {
  const auto mismatch = [&](const char* what, std::uint64_t theirs, std::uint64_t ours) {
    if (theirs == ours) return;
    throw Error(ErrorCode::configuration_mismatch, spec.phase, peer,
                fmt::format("sent a message with {} {}, {} expected", what, theirs, ours),
                "nothing was applied; all ranks have to make the same calls, and a rank whose data "
                "ends early uses request_stop()");
  };
  mismatch("step", header.step, context.state.step());
  mismatch("schema", header.schema, context.compressor.options().schema);
  mismatch("sender", header.sender, sender);
  if (!header.notice) {
    throw Error(ErrorCode::configuration_mismatch, spec.phase, peer,
                "sent a message without a notice", "nothing was applied");
  }
  mismatch("bucket", header.notice->bucket, spec.notice.bucket);
  mismatch("tensors in its bucket", header.notice->present.size(), spec.notice.present.size());
}

void check_frames(const RoundSpec& spec, const std::string& peer,
                  std::span<const FrameInfo> frames) {
  auto next = spec.tensors.begin();
  for (const FrameInfo& frame : frames) {
    next = std::find_if(next, spec.tensors.end(),
                        [&](const Expected& e) { return e.tensor == frame.tensor; });
    if (next == spec.tensors.end()) {
      throw Error(ErrorCode::unknown_tensor, spec.phase, peer,
                  fmt::format("sent tensor {}, which is not of this bucket", frame.tensor),
                  "nothing was applied");
    }
    if (frame.elements == next->elements) continue;
    throw Error(ErrorCode::configuration_mismatch, spec.phase, peer,
                fmt::format("sent a message with tensor size {}, {} expected", frame.elements,
                            next->elements),
                "nothing was applied");
  }
}

std::vector<Parcel> send(Context& context, Rounds& rounds, const char* phase, Contents& contents,
                         const Outbox& outbox) {
  std::vector<std::span<const std::byte>> outgoing;
  for (int r = 0; r < context.group.size(); ++r) {
    outgoing.emplace_back(outbox[outbox.size() == 1 ? 0 : static_cast<std::size_t>(r)]);
  }
  const PhaseMeter meter(context.group, contents, phase);
  const std::uint64_t bound = rounds.next();
  contents.lengths_first |= !context.group.has_room(bound);
  return context.group.swap(outgoing, bound, rounds.following());
}

}  // namespace

std::vector<Expected> expected_of(std::span<const Gradient> gradients) {
  std::vector<Expected> all;
  for (const Gradient& gradient : gradients) all.push_back({gradient.tensor, gradient.values.size()});
  return all;
}

std::vector<std::byte> notice_message(const Context& context, const Notice& notice) {
  std::vector<std::byte> message(kMessageOverhead + notice_bytes(notice));
  MessageWriter(message, header_of(context, notice)).finish();
  return message;
}

std::uint64_t parcel_bound(std::size_t tensors, std::uint64_t contents) {
  return kMessageOverhead + notice_bound(tensors) +
         std::max<std::uint64_t>(contents, Notice::kLongestCause);
}

Received check_parcel(const Context& context, const RoundSpec& spec, int sender, int from,
                      Parcel parcel) {
  const std::string peer = fmt::format("rank {}", from);
  const std::size_t size = message_size(parcel.bytes);
  const std::span<const std::byte> values = parcel.bytes.subspan(size);
  Received received{parcel, checked(context, spec.phase, peer, parcel.bytes.first(size)), values};
  const MessageHeader& header = received.message.header();
  if (header.notice && header.notice->failure) {
    throw Error(ErrorCode::peer_failed, "exchange", peer, "gave up: " + header.notice->failure->text);
  }
  check_header(context, spec, peer, static_cast<std::size_t>(sender), header);
  check_frames(spec, peer, received.message.frames());
  const std::size_t wanted = spec.values.empty() ? 0 : spec.values[static_cast<std::size_t>(sender)];
  if (values.size() != wanted) {
    throw Error(ErrorCode::bad_length, spec.phase, peer,
                fmt::format("sent {} bytes of values, {} expected", values.size(), wanted),
                "nothing was applied");
  }
  return received;
}

std::vector<Received> swap_parcels(Context& context, Rounds& rounds, const RoundSpec& spec,
                                   Contents& contents, const std::function<Outbox()>& make) {
  Outbox outbox;
  try {
    outbox = make();
  } catch (const std::exception& exception) {
    const Error cause = as_error(exception);
    Notice notice = spec.notice;
    notice.failure = {.code = cause.code(), .text = cause.what()};
    try {
      send(context, rounds, spec.phase, contents, {notice_message(context, notice)});
    } catch (const std::exception&) {
      // The group failed too; the cause is still the first.
    }
    throw;
  }
  std::vector<Parcel> parcels = send(context, rounds, spec.phase, contents, outbox);
  std::vector<Received> all;
  all.reserve(parcels.size());
  for (int r = 0; r < context.group.size(); ++r) {
    all.push_back(check_parcel(context, spec, r, context.group.world_rank(r),
                               std::move(parcels[static_cast<std::size_t>(r)])));
  }
  return all;
}

Notice merged(const Context& context, std::span<const Received> all) {
  Notice sum = *all[0].message.header().notice;
  std::vector<std::uint64_t> hashes;
  bool hashed = false;
  for (const Received& received : all) {
    const Notice& theirs = *received.message.header().notice;
    sum.stop |= theirs.stop;
    sum.nonfinite |= theirs.nonfinite;
    for (std::size_t i = 0; i < sum.present.size(); ++i) {
      if (theirs.present[i]) sum.present[i] = true;
    }
    hashed |= theirs.parameters.has_value();
    hashes.push_back(theirs.parameters.value_or(0));
  }
  if (hashed) compare_hashes(hashes, context.state.step());
  return sum;
}

Notice agree(Context& context, Task& task, Contents& contents) {
  const auto all = swap_parcels(context, task.rounds, {.phase = "agree", .notice = task.notice},
                                contents, [&] {
                                  task.throw_if_refused();
                                  return Outbox{notice_message(context, task.notice)};
                                });
  return merged(context, all);
}

}  // namespace dgc::exchange
