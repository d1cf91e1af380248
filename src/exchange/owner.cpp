// Owners of index ranges select again.
//
// 1. Each worker selects its k entries and sends each owner those in the owner's range.
// 2. The owner adds them, in the order of the ranks, to its whole residual of the range, which
//    costs no traffic, and selects its share of k from the sum.
// 3. What it selected goes to everybody; the rest, and any rounding error, stays in its residual.
// A worker receives about 2k entries however many workers there are. The paper knows all-gather
// only (its algorithm 4); docs/exchange.md has the bytes and messages of both.
#include <fmt/format.h>

#include <algorithm>

#include "compress/select.h"
#include "exchange/parcels.h"

namespace dgc::exchange {
namespace {

using Cuts = std::vector<std::vector<std::uint64_t>>;

std::vector<std::byte> message_of(const Context& context, const Notice& notice,
                                  std::span<const FrameInput> frames,
                                  std::vector<std::vector<float>>& decoded) {
  std::size_t bound = kMessageOverhead + notice_bytes(notice);
  for (const FrameInput& f : frames) {
    bound += frame_bound(f.elements, f.values.size(), f.value_type, f.coding);
  }
  std::vector<std::byte> message(bound);
  MessageWriter writer(message, {.step = context.state.step(),
                                 .schema = context.compressor.options().schema,
                                 .sender = static_cast<std::uint16_t>(context.group.rank()),
                                 .notice = notice});
  decoded.clear();
  for (const FrameInput& f : frames) writer.add(f, decoded.emplace_back(f.values.size()));
  message.resize(writer.finish());
  return message;
}

/// What a message selects. The codec makes a dense frame of a list with nearly all elements of a
/// tensor, and its zeros come back as entries: they stand for places that the list did not have,
/// which may be in the range of another owner.
std::vector<Entries> selection_of(const CheckedMessage& message) {
  std::vector<Entries> all = decode_entries(message, kMaxElements);
  for (Entries& entries : all) {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < entries.values.size(); ++i) {
      if (entries.values[i] == 0.0f) continue;
      entries.indices[kept] = entries.indices[i];
      entries.values[kept++] = entries.values[i];
    }
    entries.indices.resize(kept);
    entries.values.resize(kept);
  }
  return all;
}

/// The tensors of a bucket, and who owns what of them.
struct Ownership {
  std::vector<std::size_t> tensors;
  std::vector<Load> loads;
  Cuts cuts;

  Ownership(const Context& context, std::uint64_t step, std::span<const std::size_t> of)
      : tensors(of.begin(), of.end()) {
    for (const std::size_t t : tensors) loads.push_back(context.load_of(t, step));
    cuts = owner_cuts(loads, context.group.size());
  }
  std::uint64_t range(std::size_t t, std::size_t owner) const {
    return cuts[t][owner + 1] - cuts[t][owner];
  }
};

/// This worker's selection, cut up by owner. What re-encoding changes goes back to the residual.
Outbox slices_of(Context& context, const Notice& notice, std::span<const Entries> selected,
                 const Ownership& owned, Contents& contents) {
  const auto& [tensors, loads, cuts] = owned;
  Outbox slices;
  for (std::size_t owner = 0; owner < static_cast<std::size_t>(context.group.size()); ++owner) {
    std::vector<FrameInput> frames;
    for (const Entries& entries : selected) {
      const auto place = std::lower_bound(tensors.begin(), tensors.end(), entries.tensor);
      const auto t = static_cast<std::size_t>(place - tensors.begin());
      const auto& cut = cuts[t];
      const auto at = [&](std::uint64_t index) {
        return static_cast<std::size_t>(
            std::lower_bound(entries.indices.begin(), entries.indices.end(), index) -
            entries.indices.begin());
      };
      const std::size_t first = at(cut[owner]);
      const std::size_t count = at(cut[owner + 1]) - first;
      if (count == 0) continue;
      frames.push_back({.tensor = entries.tensor,
                        .elements = entries.elements,
                        .indices = std::span(entries.indices).subspan(first, count),
                        .values = std::span(entries.values).subspan(first, count),
                        .value_type = context.values_of(loads[t]),
                        .coding = IndexCoding::automatic});
    }
    std::vector<std::vector<float>> decoded;
    slices.push_back(message_of(context, notice, frames, decoded));
    for (std::size_t f = 0; f < frames.size(); ++f) {
      for (std::size_t i = 0; i < decoded[f].size(); ++i) {
        const float error = frames[f].values[i] - decoded[f][i];
        if (error != 0.0f) contents.errors.push_back({frames[f].tensor, frames[f].indices[i], error});
      }
    }
  }
  return slices;
}

/// The k largest of `values` (ties: lower index), as indices offset by `begin`.
void largest(std::span<const float> values, std::size_t k, std::uint32_t begin,
             std::vector<std::uint32_t>& indices, std::vector<float>& chosen) {
  std::vector<std::uint32_t> scratch;
  const std::uint32_t threshold = compress::exact_threshold(values, k, scratch);
  compress::CandidateList candidates;
  const compress::Kernels& kernels = compress::active_kernels();
  compress::EntryArrays found = candidates.room_for(values.size());
  found.velocities = nullptr;
  candidates.added(kernels.collect(nullptr, values.data(), values.size(), threshold, begin, found));
  compress::TrimScratch memory;
  compress::SelectedEntries selected;
  const compress::Trimmed trimmed =
      compress::trim(kernels, {&candidates, 1}, k, compress::kNoCandidates, memory);
  compress::gather(kernels, {&candidates, 1}, trimmed, false, selected);
  indices = std::move(selected.indices);
  chosen = std::move(selected.values);
}

/// The whole residual of this rank's ranges, with everybody's slices added in the order of the
/// ranks. On a copy: the state itself changes at the commit only.
std::vector<std::vector<float>> sums_of(const Context& context, const Ownership& owned,
                                        std::span<const Received> all) {
  const auto& [tensors, loads, cuts] = owned;
  const auto me = static_cast<std::size_t>(context.group.rank());
  std::vector<std::vector<float>> sums(tensors.size());
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const auto v = std::as_const(context.state)
                       .residual(tensors[t])
                       .subspan(cuts[t][me], owned.range(t, me));
    sums[t].assign(v.begin(), v.end());
  }
  for (std::size_t r = 0; r < all.size(); ++r) {
    for (const Entries& entries : selection_of(all[r].message)) {
      const auto place = std::lower_bound(tensors.begin(), tensors.end(), entries.tensor);
      const auto t = static_cast<std::size_t>(place - tensors.begin());
      for (std::size_t i = 0; i < entries.indices.size(); ++i) {
        const std::uint32_t index = entries.indices[i];
        if (index < cuts[t][me] || index >= cuts[t][me + 1]) {
          throw Error(ErrorCode::index_out_of_range, "to owners", fmt::format("rank {}", r),
                      fmt::format("sent tensor {}, index {} to an owner that does not have it",
                                  entries.tensor, index));
        }
        sums[t][index - cuts[t][me]] += entries.values[i];
      }
    }
  }
  return sums;
}

/// What this rank selects of its sums, as a message. The rest is its new residual.
std::vector<std::byte> reselected(const Context& context, const Notice& notice,
                                  const Ownership& owned, std::vector<std::vector<float>> sums,
                                  Contents& contents) {
  const auto& [tensors, loads, cuts] = owned;
  const auto me = static_cast<std::size_t>(context.group.rank());
  std::vector<std::vector<std::uint32_t>> indices(tensors.size());
  std::vector<std::vector<float>> values(tensors.size());
  std::vector<FrameInput> frames;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const std::uint64_t k = owner_entries(loads[t], sums[t].size());
    if (k == 0) continue;
    largest(sums[t], k, static_cast<std::uint32_t>(cuts[t][me]), indices[t], values[t]);
    if (indices[t].empty()) continue;
    frames.push_back({.tensor = static_cast<std::uint32_t>(tensors[t]),
                      .elements = loads[t].elements,
                      .indices = indices[t],
                      .values = values[t],
                      .value_type = context.values_of(loads[t]),
                      .coding = IndexCoding::automatic});
  }
  std::vector<std::vector<float>> decoded;
  std::vector<std::byte> message = message_of(context, notice, frames, decoded);
  for (std::size_t f = 0, t = 0; t < tensors.size(); ++t) {
    ResidualRange range{tensors[t], cuts[t][me], std::move(sums[t]), {}};
    if (f < frames.size() && frames[f].tensor == tensors[t]) {
      for (std::size_t i = 0; i < frames[f].indices.size(); ++i) {
        if (decoded[f][i] == 0.0f) continue;
        const std::uint32_t index = frames[f].indices[i];
        range.values[index - range.begin] -= decoded[f][i];
        if (loads[t].entries < loads[t].elements) range.masked.push_back(index);
      }
      ++f;
    }
    contents.ranges.push_back(std::move(range));
  }
  return message;
}

}  // namespace

std::vector<std::uint64_t> owner_bounds(const Context& context, std::uint64_t step,
                                        std::span<const std::size_t> tensors) {
  const Ownership owned(context, step, tensors);
  std::uint64_t to = 0;
  std::uint64_t from = 0;
  for (std::size_t o = 0; o < static_cast<std::size_t>(context.group.size()); ++o) {
    std::uint64_t slice = 0;
    std::uint64_t chosen = 0;
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      const Load& load = owned.loads[t];
      const std::uint64_t range = owned.range(t, o);
      const ValueType type = context.values_of(load);
      const auto frame = [&](std::uint64_t entries) {
        return frame_bound(load.elements, entries, type, IndexCoding::automatic);
      };
      slice += frame(std::min(range, load.entries));
      chosen += frame(owner_entries(load, range));
    }
    to = std::max(to, slice);
    from = std::max(from, chosen);
  }
  return {parcel_bound(tensors.size(), to), parcel_bound(0, from)};
}

void run_owner(Context& context, Task& task, Contents& contents) {
  std::vector<std::size_t> tensors;
  for (const Gradient& gradient : task.gradients) tensors.push_back(gradient.tensor);
  const Ownership owned(context, context.state.step(), tensors);
  const std::vector<Expected> expected = expected_of(task.gradients);

  const auto received = swap_parcels(
      context, task.rounds, {.phase = "to owners", .notice = task.notice, .tensors = expected},
      contents, [&] {
        task.throw_if_refused();
        std::vector<std::byte> whole(context.compressor.bound(task.gradients));
        whole.resize(context.compressor.compress(task.gradients, whole, task.call));
        Outbox slices = slices_of(context, task.notice, selection_of(CheckedMessage(whole)), owned,
                                  contents);
        for (const auto& slice : slices) contents.message_bytes += slice.size();
        return slices;
      });
  contents.merged = merged(context, received);

  const Notice back{.bucket = task.notice.bucket};
  contents.messages = swap_parcels(
      context, task.rounds, {.phase = "from owners", .notice = back, .tensors = expected}, contents,
      [&] {
        Outbox chosen{
            reselected(context, back, owned, sums_of(context, owned, received), contents)};
        contents.message_bytes += chosen[0].size();
        return chosen;
      });
  contents.sparse = task.gradients.size();
  contents.reselected = true;
}

}  // namespace dgc::exchange
