// All-gather, the exchange of the paper (algorithm 4): every worker's message goes to every other,
// and all are added in the order of the ranks. A worker receives N - 1 messages, in one round.
// Deviation: all messages are checked before any is applied.
#include "exchange/context.h"

namespace dgc::exchange {

void run_allgather(Context& context, std::span<const Gradient> gradients,
                   const Compressor::Call& call, std::span<const std::uint64_t> next,
                   Bucket::Impl& bucket) {
  std::vector<std::byte> mine(context.compressor.bound(gradients));
  const std::size_t bound = mine.size();  // of everybody's
  mine.resize(context.compressor.compress(gradients, mine, call));
  bucket.message_bytes += mine.size();
  std::vector<Parcel> all;
  {
    const PhaseMeter meter(context.group, bucket, "allgather");
    all = context.group.swap(mine, bound, next);
  }
  for (int rank = 0; rank < context.group.size(); ++rank) {
    context.check_message(all[static_cast<std::size_t>(rank)].bytes, rank, context.group.world_rank(rank),
                          "allgather", gradients);
  }
  for (const Parcel& parcel : all) {
    bucket.messages.emplace_back(parcel.bytes.begin(), parcel.bytes.end());
  }
}

}  // namespace dgc::exchange
