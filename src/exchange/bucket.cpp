// A bucket takes one round with all-gather, two with dense parts or owners.
//
// A rank that lacks a gradient (a branch not taken, an unused head) cannot know in time whether
// another rank has one. It goes on as with a gradient of zero and keeps what u and v were; the
// messages say who had what, and if no rank had one, u and v are put back and nothing is applied.
// (The paper does not know such parameters.)
//
// Two things have to be known before anything is accumulated, and take a round of their own: with
// skip_nonfinite, whether all gradients are finite; where workers of a host have shares, which
// tensors the others of the host have.
#include "exchange/bucket.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "exchange/choose.h"
#include "exchange/parcels.h"
#include "exchange/sampled_norm.h"

namespace dgc::exchange {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

bool is_finite(const Gradient& gradient) {
  return std::all_of(gradient.values.begin(), gradient.values.end(),
                     [](float x) { return std::isfinite(x); });
}

}  // namespace

bool BucketRunner::agrees_first() const {
  return topology_.has_value() || context_.options.skip_nonfinite;
}

BucketRunner::Ways BucketRunner::ways_of(std::span<const std::size_t> tensors,
                                         std::uint64_t step) const {
  const std::vector<std::size_t> all(tensors.begin(), tensors.end());
  const ExchangeOptions& options = context_.options;
  if (options.algorithm == Algorithm::dense) return {.dense = all};
  if (options.algorithm == Algorithm::owner) return {.owner = true};
  if (options.algorithm != Algorithm::automatic) return {.sparse = all};
  std::vector<Item> items;
  for (const std::size_t t : tensors) {
    const Load load = context_.load_of(t, step);
    items.push_back({load, context_.values_of(load)});
  }
  const Choice choice = choose({context_.group.size(), options.dense_transport, context_.costs},
                               items, options.reselect);
  Ways ways{.owner = choice.owner};
  for (std::size_t i = 0; i < all.size(); ++i) {
    (choice.dense[i] ? ways.dense : ways.sparse).push_back(all[i]);
  }
  return ways;
}

std::vector<std::uint64_t> BucketRunner::bounds_of(std::size_t bucket, std::uint64_t step) const {
  const std::vector<std::size_t>& tensors = buckets_[bucket];
  std::vector<std::uint64_t> bounds;
  if (agrees_first()) bounds.push_back(parcel_bound(tensors.size(), 0));
  if (topology_) return bounds;  // its other rounds are among some of the ranks
  const Ways ways = ways_of(tensors, step);
  const std::vector<std::uint64_t> rest =
      ways.owner ? owner_bounds(context_, step, tensors)
                 : allgather_bounds(context_, step, ways.sparse, ways.dense);
  bounds.insert(bounds.end(), rest.begin(), rest.end());
  return bounds;
}

Task BucketRunner::task_of(const Given& given) {
  const std::vector<std::size_t>& tensors = buckets_[given.bucket];
  const std::uint64_t step = context_.state.step();
  // Room is made two rounds ahead, also into the next step.
  std::vector<std::uint64_t> bounds = bounds_of(given.bucket, step);
  const bool last = given.bucket + 1 == buckets_.size();
  const auto after = bounds_of(last ? 0 : given.bucket + 1, step + (last ? 1 : 0));
  bounds.insert(bounds.end(), after.begin(), after.end());
  if (after.size() < 2) bounds.insert(bounds.end(), after.begin(), after.end());

  Task task{.notice = {.bucket = static_cast<std::uint32_t>(given.bucket),
                       .present = std::vector<bool>(tensors.size()),
                       .stop = given.stop,
                       .parameters = given.parameters},
            .gradients = {},
            .call = given.call,
            .rounds = Rounds(std::move(bounds))};
  std::size_t largest = 0;
  for (const std::size_t t : tensors) {
    largest = std::max<std::size_t>(largest, context_.model[t].elements());
  }
  auto next = given.gradients.begin();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (next != given.gradients.end() && next->tensor == tensors[i]) {
      task.notice.present[i] = true;
      task.gradients.push_back(*next++);
      continue;
    }
    if (zeros_.size() < largest) zeros_.resize(largest);
    const auto elements = static_cast<std::size_t>(context_.model[tensors[i]].elements());
    task.gradients.push_back({tensors[i], std::span(std::as_const(zeros_)).first(elements)});
  }
  return task;
}

/// A norm that is not finite says that some gradient is not. Which one is looked for here, so that
/// the error has a name.
void BucketRunner::check(const Given& given) const {
  if (context_.options.skip_nonfinite || !given.call.norm) return;
  if (std::isfinite(*given.call.norm)) return;
  for (const Gradient& gradient : given.gradients) {
    const auto bad = std::find_if_not(gradient.values.begin(), gradient.values.end(),
                                      [](float x) { return std::isfinite(x); });
    if (bad == gradient.values.end()) continue;
    throw Error(ErrorCode::nonfinite_gradient, "exchange",
                fmt::format("'{}'", context_.model[gradient.tensor].name),
                fmt::format("its gradient is {} at index {}, step {}, rank {}", *bad,
                            bad - gradient.values.begin(), context_.state.step(),
                            context_.group.world_rank(context_.group.rank())),
                "nothing was accumulated; look at the loss and the learning rate");
  }
}

/// The ranks have agreed: what no rank has is left out altogether.
void BucketRunner::drop_absent(Task& task, const Notice& agreed) const {
  const std::vector<std::size_t>& tensors = buckets_[task.notice.bucket];
  std::erase_if(task.gradients, [&](const Gradient& gradient) {
    const auto at = std::lower_bound(tensors.begin(), tensors.end(), gradient.tensor);
    return !agreed.present[static_cast<std::size_t>(at - tensors.begin())];
  });
}

void BucketRunner::exchange(Task& task, Contents& contents) {
  if (topology_) return run_shares(context_, *topology_, task, contents);
  const Ways ways = ways_of(buckets_[task.notice.bucket], context_.state.step());
  if (ways.owner) return run_owner(context_, task, contents);
  std::vector<Gradient> sparse;
  std::vector<Gradient> dense;
  for (const Gradient& gradient : task.gradients) {
    const bool densely = std::binary_search(ways.dense.begin(), ways.dense.end(), gradient.tensor);
    (densely ? dense : sparse).push_back(gradient);
  }
  run_allgather(context_, task, sparse, dense, contents);
}

Contents BucketRunner::run(const Given& given) {
  Contents contents;
  const Traffic before = context_.group.traffic();
  const auto start = std::chrono::steady_clock::now();
  const Compressor::Seconds compressing = context_.compressor.seconds();
  Task task = task_of(given);
  try {
    check(given);
  } catch (const Error& error) {
    task.refused = error;  // the others are told
  }
  if (context_.options.skip_nonfinite) {
    task.notice.nonfinite =
        given.call.norm ? !std::isfinite(*given.call.norm)
                        : !std::all_of(given.gradients.begin(), given.gradients.end(), is_finite);
  }
  std::optional<Notice> agreed;
  if (agrees_first()) {
    agreed = agree(context_, task, contents);
    drop_absent(task, *agreed);
    task.notice.parameters.reset();  // compared
  }
  if (!agreed) {
    for (std::size_t i = 0; i < task.gradients.size(); ++i) {
      if (task.notice.present[i]) continue;
      const std::size_t t = task.gradients[i].tensor;
      const auto u = std::as_const(context_.state).velocity(t);
      const auto v = std::as_const(context_.state).residual(t);
      kept_.push_back({t, {u.begin(), u.end()}, {v.begin(), v.end()}});
    }
  }
  const bool skipped = agreed && agreed->nonfinite && context_.options.skip_nonfinite;
  if (!skipped && !task.gradients.empty()) {
    exchange(task, contents);
  }
  if (agreed) contents.merged = *agreed;
  const auto exchanged = std::chrono::steady_clock::now();
  contents.seconds.compress = context_.compressor.seconds().select - compressing.select;
  contents.seconds.encode = context_.compressor.seconds().encode - compressing.encode;
  contents.seconds.exchange = std::chrono::duration<double>(exchanged - start).count() -
                              contents.seconds.compress - contents.seconds.encode;
  if (!skipped) measure(task, contents);
  contents.seconds.statistics = seconds_since(exchanged);
  contents.moved = context_.group.traffic() - before;
  return contents;
}

void BucketRunner::measure(const Task& task, Contents& contents) const {
  const double factor = task.call.scale * context_.compressor.clip_factor() / context_.group.size();
  for (const Gradient& g : task.gradients) {
    contents.gradient_squares += sampled_squares(g.values, context_.state.step()) * factor * factor;
    contents.residual_squares +=
        sampled_squares(std::as_const(context_.state).residual(g.tensor), context_.state.step());
  }
}

void BucketRunner::put_back() noexcept {
  put_back_absent(std::vector<bool>(context_.model.size(), false));
}

void BucketRunner::put_back_absent(const std::vector<bool>& present) noexcept {
  for (const Kept& kept : std::exchange(kept_, {})) {
    if (present[kept.tensor]) continue;
    std::copy(kept.velocity.begin(), kept.velocity.end(),
              context_.state.velocity(kept.tensor).begin());
    std::copy(kept.residual.begin(), kept.residual.end(),
              context_.state.residual(kept.tensor).begin());
  }
}

}  // namespace dgc::exchange
