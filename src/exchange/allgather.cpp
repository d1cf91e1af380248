// All-gather, the exchange of the paper (algorithm 4): every worker's message goes to every other,
// and all are added in the order of the ranks. A worker receives N - 1 messages, in one round.
//
// Tensors that go densely travel with it: behind the message to rank r are this worker's values of
// part r of them (dense.h). Their sums come back in a second round.
//
// Deviations from the paper: all messages are checked before any is applied, and tensors for which
// a dense sum is faster (warm-up at 75 % sparsity, say) do not go as messages.
#include "exchange/dense.h"
#include "exchange/parcels.h"
#include "wire/message.h"

namespace dgc::exchange {
namespace {

/// Sums of finite values may be too large all the same. Whole tensors are looked at: there every
/// rank has a value at every place. Every rank has the same and throws the same.
void check_sums(const Context& context, std::span<const Received> messages,
                std::span<const Gradient> gradients) {
  std::vector<std::vector<float>> sums(context.state.tensors().size());
  std::vector<std::span<float>> targets;
  bool any = false;
  for (const Gradient& gradient : gradients) {
    const Load load = context.load_of(gradient.tensor);
    if (load.entries < load.elements) continue;
    sums[gradient.tensor].resize(load.elements);
    any = true;
  }
  if (!any) return;
  targets.assign(sums.begin(), sums.end());
  const std::vector<float> ones(sums.size(), 1.0f);
  for (const Received& received : messages) wire::add_some(received.message, targets, ones);
  for (std::size_t t = 0; t < sums.size(); ++t) check_finite_sum(context, t, sums[t], 0);
}

}  // namespace

std::vector<std::uint64_t> allgather_bounds(const Context& context, std::uint64_t step,
                                            std::span<const std::size_t> sparse,
                                            std::span<const std::size_t> dense) {
  std::uint64_t frames = 0;
  for (const std::size_t t : sparse) frames += context.frame_bound_of(t, step);
  std::uint64_t elements = 0;
  for (const std::size_t t : dense) elements += context.state.tensors()[t].elements();
  if (dense.empty()) return {parcel_bound(sparse.size() + dense.size(), frames)};
  const std::uint64_t part = largest_part(context, elements);
  return {parcel_bound(sparse.size() + dense.size(), frames + part), parcel_bound(0, part)};
}

void run_allgather(Context& context, Task& task, std::span<const Gradient> sparse,
                   std::span<const Gradient> dense, Contents& contents) {
  Compressor::Call call = task.call;
  call.notice = &task.notice;
  DenseParts parts(context, dense);
  const auto make = [&] {
    task.throw_if_refused();
    // Clipping is over all of them, so that its norm cannot be left to the two calls.
    if (!call.norm && context.compressor.options().clip_norm > 0.0 && !dense.empty()) {
      call.norm = context.compressor.norm(task.gradients);
    }
    std::vector<std::byte> message(context.compressor.bound(sparse) + notice_bytes(task.notice));
    message.resize(context.compressor.compress(sparse, message, call));
    contents.message_bytes += message.size();
    if (dense.empty()) return Outbox{std::move(message)};
    Outbox outbox = parts.lay_out(call, message);
    contents.message_bytes += parts.bytes();
    return outbox;
  };
  contents.messages = swap_parcels(context, task.rounds,
                                   {.phase = sparse.empty() ? "dense" : "allgather",
                                    .notice = task.notice,
                                    .tensors = expected_of(sparse),
                                    .values = parts.sizes_to_me()},
                                   contents, make);
  contents.merged = merged(context, contents.messages);
  contents.sparse = sparse.size();
  check_sums(context, contents.messages, sparse);
  if (dense.empty()) return;
  const Notice back{.bucket = task.notice.bucket};
  const auto sums = swap_parcels(
      context, task.rounds, {.phase = "dense", .notice = back, .values = parts.sizes_from_each()},
      contents,
      [&] { return Outbox{parts.reduce(contents.messages, notice_message(context, back))}; });
  parts.gather(sums, contents);
  for (Received& received : contents.messages) received.values = {};
}

}  // namespace dgc::exchange
