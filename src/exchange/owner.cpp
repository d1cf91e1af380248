// Owners of index ranges select again.
//
// 1. Each worker selects its k entries and sends each owner those in the owner's range.
// 2. The owner adds them, in the order of the ranks, to its whole residual of the range, which
//    costs no traffic, and selects from the sum: one entry for N that came. So owners together
//    select k, and an owner whose range has larger entries than others selects more of them.
// 3. What it selected goes to everybody; the rest, and any rounding error, stays in its residual.
// A worker receives about 2k entries however many workers there are. The paper knows all-gather
// only (its algorithm 4); docs/exchange.md has the bytes and messages of both.
#include "exchange/owners.h"

#include "exchange/parcels.h"

namespace dgc::exchange {

std::vector<std::uint64_t> owner_bounds(const Context& context, std::uint64_t step,
                                        std::span<const std::size_t> tensors) {
  const Owners::Bounds frames =
      Owners(context.state, context.compressor.options(), step, tensors).bounds();
  return {parcel_bound(tensors.size(), frames.to), parcel_bound(0, frames.from)};
}

void run_owner(Context& context, Task& task, Contents& contents) {
  std::vector<std::size_t> tensors;
  for (const Gradient& gradient : task.gradients) tensors.push_back(gradient.tensor);
  const Owners owners(context.state, context.compressor.options(), context.state.step(), tensors);
  const std::vector<Expected> expected = expected_of(task.gradients);

  const auto received = swap_parcels(
      context, task.rounds, {.phase = "to owners", .notice = task.notice, .tensors = expected},
      contents, [&] {
        task.throw_if_refused();
        std::vector<std::byte> whole(context.compressor.bound(task.gradients));
        whole.resize(context.compressor.compress(task.gradients, whole, task.call));
        Outbox slices = owners.slices_of(CheckedMessage(whole), task.notice, contents.changes);
        for (const auto& slice : slices) contents.message_bytes += slice.size();
        return slices;
      });
  contents.merged = merged(context, received);

  const Notice back{.bucket = task.notice.bucket};
  contents.messages =
      swap_parcels(context, task.rounds,
                   {.phase = "from owners", .notice = back, .tensors = expected}, contents, [&] {
                     std::vector<const CheckedMessage*> slices;
                     for (const Received& one : received) slices.push_back(&one.message);
                     Outbox chosen{owners.choose(slices, back, contents.changes)};
                     contents.message_bytes += chosen[0].size();
                     return chosen;
                   });
  contents.sparse = task.gradients.size();
  contents.reselected = true;
}

}  // namespace dgc::exchange
