// One round: everybody's message to everybody, with what each has to say of the bucket (wire.h,
// Notice). A rank that fails before it has a message sends its cause instead, so that all ranks
// know it in the same round and nobody waits.
#include "exchange/parcels.h"

#include <fmt/format.h>

namespace dgc::exchange {
namespace {

MessageHeader header_of(const Context& context, const Notice& notice) {
  return {.step = context.state.step(),
          .schema = context.compressor.options().schema,
          .sender = static_cast<std::uint16_t>(context.group.rank()),
          .notice = notice};
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
  for (const Gradient& gradient : gradients)
    all.push_back({gradient.tensor, gradient.values.size()});
  return all;
}

std::vector<std::byte> notice_message(const Context& context, const Notice& notice) {
  std::vector<std::byte> message(kMessageOverhead + notice_bytes(notice));
  MessageWriter(message, header_of(context, notice)).finish();
  return message;
}

Received check_parcel(const Context& context, const RoundSpec& spec, int sender, int from,
                      Parcel parcel) {
  const std::string peer = fmt::format("rank {}", from);
  const Rules rules{.phase = spec.phase,
                    .step = context.state.step(),
                    .schema = context.compressor.options().schema,
                    .notice = spec.notice,
                    .tensors = spec.tensors,
                    .hint =
                        "nothing was applied; all ranks have to make the same calls, and a rank "
                        "whose data ends early uses request_stop()"};
  const std::size_t size = message_size(parcel.bytes);
  const std::span<const std::byte> values = parcel.bytes.subspan(size);
  Received received{parcel, checked_message(rules, peer, parcel.bytes.first(size)), values};
  const MessageHeader& header = received.message.header();
  if (header.notice && header.notice->failure) {
    throw Error(ErrorCode::peer_failed, "exchange", peer,
                "gave up: " + header.notice->failure->text);
  }
  check_message(rules, peer, static_cast<std::size_t>(sender), received.message);
  const std::size_t wanted =
      spec.values.empty() ? 0 : spec.values[static_cast<std::size_t>(sender)];
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
  std::vector<const Notice*> notices;
  for (const Received& received : all) notices.push_back(&*received.message.header().notice);
  return merged(notices, context.state.step());
}

Notice agree(Context& context, Task& task, Contents& contents) {
  const auto all =
      swap_parcels(context, task.rounds, {.phase = "agree", .notice = task.notice}, contents, [&] {
        task.throw_if_refused();
        return Outbox{notice_message(context, task.notice)};
      });
  return merged(context, all);
}

}  // namespace dgc::exchange
