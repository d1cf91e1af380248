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
#include "dgc/collectives.h"
#include "exchange/context.h"

namespace dgc::exchange {
namespace {

using Cuts = std::vector<std::vector<std::uint64_t>>;

ValueType value_type_of(const CompressOptions& options, const Load& load) {
  return load.entries == load.elements ? options.dense_values : options.values;
}

std::vector<std::byte> message_of(const Context& context, std::span<const FrameInput> frames,
                                  std::vector<std::vector<float>>& decoded) {
  std::size_t bound = kMessageOverhead;
  for (const FrameInput& f : frames) {
    bound += frame_bound(f.elements, f.values.size(), f.value_type, f.coding);
  }
  std::vector<std::byte> message(bound);
  MessageWriter writer(message, {.step = context.state.step(),
                                 .schema = context.compressor.options().schema,
                                 .sender = static_cast<std::uint16_t>(context.group.rank())});
  decoded.clear();
  for (const FrameInput& f : frames) writer.add(f, decoded.emplace_back(f.values.size()));
  message.resize(writer.finish());
  return message;
}

/// What a message selects. The codec makes a dense frame of a list with nearly all elements of a
/// tensor, and its zeros come back as entries: they stand for places that the list did not have,
/// which may be in the range of another owner.
std::vector<Entries> selection_of(std::span<const std::byte> message) {
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

/// This worker's selection, cut up by owner. What re-encoding changes goes back to the residual.
std::vector<std::vector<std::byte>> slices_of(Context& context, std::span<const Entries> selected,
                                              const std::vector<std::size_t>& tensors,
                                              const std::vector<Load>& loads, const Cuts& cuts,
                                              Bucket::Impl& bucket) {
  const CompressOptions& options = context.compressor.options();
  std::vector<std::vector<std::byte>> slices;
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
                        .value_type = value_type_of(options, loads[t]),
                        .coding = IndexCoding::automatic});
    }
    std::vector<std::vector<float>> decoded;
    slices.push_back(message_of(context, frames, decoded));
    for (std::size_t f = 0; f < frames.size(); ++f) {
      for (std::size_t i = 0; i < decoded[f].size(); ++i) {
        const float error = frames[f].values[i] - decoded[f][i];
        if (error != 0.0f) bucket.errors.push_back({frames[f].tensor, frames[f].indices[i], error});
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

}  // namespace

void run_owner(Context& context, std::span<const Gradient> gradients, const Compressor::Call& call,
               Bucket::Impl& bucket) {
  Group& group = context.group;
  const auto me = static_cast<std::size_t>(group.rank());
  const CompressOptions& options = context.compressor.options();
  std::vector<std::size_t> tensors;
  std::vector<Load> loads;
  for (const Gradient& gradient : gradients) {
    tensors.push_back(gradient.tensor);
    loads.push_back(context.load_of(gradient.tensor));
  }
  const Cuts cuts = owner_cuts(loads, group.size());

  std::vector<std::byte> whole(context.compressor.bound(gradients));
  whole.resize(context.compressor.compress(gradients, whole, call));
  const std::vector<Entries> selected = selection_of(whole);
  const auto slices = slices_of(context, selected, tensors, loads, cuts, bucket);
  for (const auto& slice : slices) bucket.message_bytes += slice.size();

  std::vector<std::vector<std::byte>> received;
  {
    const PhaseMeter meter(group, bucket, "to owners");
    const std::vector<std::span<const std::byte>> outgoing(slices.begin(), slices.end());
    received = all_to_all(group, outgoing);
  }
  for (int r = 0; r < group.size(); ++r) {
    context.check_message(received[static_cast<std::size_t>(r)], r, r, "to owners", gradients);
  }

  // Sum on a copy of the residual: the state itself changes at the commit only.
  std::vector<std::vector<float>> sums(context.state.tensors().size());
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const auto v =
        context.state.residual(tensors[t]).subspan(cuts[t][me], cuts[t][me + 1] - cuts[t][me]);
    sums[tensors[t]].assign(v.begin(), v.end());
  }
  for (int r = 0; r < group.size(); ++r) {
    for (const Entries& entries : selection_of(received[static_cast<std::size_t>(r)])) {
      const auto place = std::lower_bound(tensors.begin(), tensors.end(), entries.tensor);
      const std::size_t t = static_cast<std::size_t>(place - tensors.begin());
      const bool known = place != tensors.end() && *place == entries.tensor &&
                         entries.elements == loads[t].elements;
      for (std::size_t i = 0; i < entries.indices.size(); ++i) {
        const std::uint32_t index = entries.indices[i];
        if (!known || index < cuts[t][me] || index >= cuts[t][me + 1]) {
          throw Error(ErrorCode::index_out_of_range, "to owners", fmt::format("rank {}", r),
                      fmt::format("sent tensor {}, index {} to an owner that does not have it",
                                  entries.tensor, index));
        }
        sums[entries.tensor][index - cuts[t][me]] += entries.values[i];
      }
    }
  }

  std::vector<std::vector<std::uint32_t>> indices(tensors.size());
  std::vector<std::vector<float>> values(tensors.size());
  std::vector<FrameInput> frames;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const std::vector<float>& sum = sums[tensors[t]];
    const std::uint64_t k = owner_entries(loads[t], sum.size());
    if (k == 0) continue;
    largest(sum, k, static_cast<std::uint32_t>(cuts[t][me]), indices[t], values[t]);
    if (indices[t].empty()) continue;
    frames.push_back({.tensor = static_cast<std::uint32_t>(tensors[t]),
                      .elements = loads[t].elements,
                      .indices = indices[t],
                      .values = values[t],
                      .value_type = value_type_of(options, loads[t]),
                      .coding = IndexCoding::automatic});
  }
  std::vector<std::vector<float>> decoded;
  const std::vector<std::byte> chosen = message_of(context, frames, decoded);
  bucket.message_bytes += chosen.size();
  for (std::size_t f = 0, t = 0; t < tensors.size(); ++t) {
    ResidualRange range{tensors[t], cuts[t][me], std::move(sums[tensors[t]]), {}};
    if (f < frames.size() && frames[f].tensor == tensors[t]) {
      for (std::size_t i = 0; i < frames[f].indices.size(); ++i) {
        if (decoded[f][i] == 0.0f) continue;
        const std::uint32_t index = frames[f].indices[i];
        range.values[index - range.begin] -= decoded[f][i];
        if (loads[t].entries < loads[t].elements) range.masked.push_back(index);
      }
      ++f;
    }
    bucket.ranges.push_back(std::move(range));
  }

  {
    const PhaseMeter meter(group, bucket, "from owners");
    bucket.messages = all_gather(group, chosen);
  }
  for (int r = 0; r < group.size(); ++r) {
    context.check_message(bucket.messages[static_cast<std::size_t>(r)], r, r, "from owners",
                          gradients);
  }
}

}  // namespace dgc::exchange
