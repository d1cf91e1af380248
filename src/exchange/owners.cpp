#include "exchange/owners.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/random.h"
#include "compress/select.h"

namespace dgc::exchange {
namespace {

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

void OwnerChanges::apply(State& state, bool masks) const {
  for (const ResidualRange& range : ranges) {
    std::copy(range.values.begin(), range.values.end(),
              state.residual(range.tensor).subspan(range.begin).begin());
    if (!masks) continue;
    for (const std::uint32_t index : range.masked) state.velocity(range.tensor)[index] = 0.0f;
  }
  for (const ResidualError& error : errors) {
    state.residual(error.tensor)[error.index] += error.value;
  }
}

Owners::Owners(const State& state, const CompressOptions& options, std::uint64_t step,
               std::span<const std::size_t> tensors)
    : state_(state), options_(options), tensors_(tensors.begin(), tensors.end()) {
  for (const std::size_t t : tensors_) loads_.push_back(load_of(state.tensors()[t], options, step));
  cuts_ = owner_cuts(loads_, static_cast<int>(state.workers()));
}

std::size_t Owners::place_of(std::uint32_t tensor) const {
  return static_cast<std::size_t>(std::lower_bound(tensors_.begin(), tensors_.end(), tensor) -
                                  tensors_.begin());
}

Owners::Bounds Owners::bounds() const {
  Bounds most;
  for (std::size_t owner = 0; owner < state_.workers(); ++owner) {
    Bounds here;
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      const auto frame = [&](std::uint64_t entries) {
        return frame_bound(loads_[t].elements, entries, values_of(options_, loads_[t]),
                           IndexCoding::automatic);
      };
      here.to += frame(std::min(range(t, owner), loads_[t].entries));
      here.from += frame(owner_most(loads_[t], range(t, owner)));
    }
    most = {.to = std::max(most.to, here.to), .from = std::max(most.from, here.from)};
  }
  return most;
}

std::vector<std::byte> Owners::message_of(const Notice& notice, std::span<const FrameInput> frames,
                                          std::vector<std::vector<float>>& decoded) const {
  std::size_t bound = kMessageOverhead + notice_bytes(notice);
  for (const FrameInput& f : frames) {
    bound += frame_bound(f.elements, f.values.size(), f.value_type, f.coding);
  }
  std::vector<std::byte> message(bound);
  MessageWriter writer(message, {.step = state_.step(),
                                 .schema = options_.schema,
                                 .sender = static_cast<std::uint16_t>(state_.rank()),
                                 .notice = notice});
  decoded.clear();
  for (const FrameInput& f : frames) writer.add(f, decoded.emplace_back(f.values.size()));
  message.resize(writer.finish());
  return message;
}

std::vector<std::vector<std::byte>> Owners::slices_of(const CheckedMessage& whole,
                                                      const Notice& notice,
                                                      OwnerChanges& changes) const {
  const std::vector<Entries> selected = selection_of(whole);
  std::vector<std::vector<std::byte>> slices;
  for (std::size_t owner = 0; owner < state_.workers(); ++owner) {
    std::vector<FrameInput> frames;
    for (const Entries& entries : selected) {
      const std::size_t t = place_of(entries.tensor);
      const auto& cut = cuts_[t];
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
                        .value_type = values_of(options_, loads_[t]),
                        .coding = IndexCoding::automatic});
    }
    std::vector<std::vector<float>> decoded;
    slices.push_back(message_of(notice, frames, decoded));
    for (std::size_t f = 0; f < frames.size(); ++f) {
      for (std::size_t i = 0; i < decoded[f].size(); ++i) {
        const float error = frames[f].values[i] - decoded[f][i];
        if (error != 0.0f)
          changes.errors.push_back({frames[f].tensor, frames[f].indices[i], error});
      }
    }
  }
  return slices;
}

/// The whole residual of this rank's ranges, with everybody's slices added in the order of the
/// ranks. On a copy: the state itself changes at the commit only.
std::vector<std::vector<float>> Owners::sums_of(std::span<const CheckedMessage* const> slices,
                                                std::vector<std::uint64_t>& received,
                                                OwnerChanges& changes) const {
  const std::size_t me = state_.rank();
  std::vector<std::vector<float>> sums(tensors_.size());
  for (std::size_t t = 0; t < tensors_.size(); ++t) {
    const auto v = state_.residual(tensors_[t]).subspan(cuts_[t][me], range(t, me));
    sums[t].assign(v.begin(), v.end());
  }
  if (options_.nesterov && options_.feedback() != 0.0f) {
    // What this rank sent to itself ran ahead, and what its residual owes for that is due at the
    // next step, as on every other rank.
    for (const Entries& entries : selection_of(*slices[me])) {
      const std::size_t t = place_of(entries.tensor);
      for (const std::uint32_t index : entries.indices) {
        float& owed = sums[t][index - cuts_[t][me]];
        changes.errors.push_back({entries.tensor, index, std::exchange(owed, 0.0f)});
      }
    }
  }
  for (std::size_t r = 0; r < slices.size(); ++r) {
    for (const Entries& entries : selection_of(*slices[r])) {
      const std::size_t t = place_of(entries.tensor);
      received[t] += entries.indices.size();
      for (std::size_t i = 0; i < entries.indices.size(); ++i) {
        const std::uint32_t index = entries.indices[i];
        if (index < cuts_[t][me] || index >= cuts_[t][me + 1]) {
          throw Error(ErrorCode::index_out_of_range, "to owners", fmt::format("rank {}", r),
                      fmt::format("sent tensor {}, index {} to an owner that does not have it",
                                  entries.tensor, index));
        }
        sums[t][index - cuts_[t][me]] += entries.values[i];
      }
    }
  }
  return sums;
}

/// Rounded up or down by chance, the same on every machine: with always one of them, a tensor of
/// few entries and many owners would send too many, or none ever.
std::uint64_t Owners::entries_of(std::size_t t, std::uint64_t received) const {
  const std::uint64_t workers = state_.workers();
  Random random{state_.step(), tensors_[t], state_.rank()};
  return owner_entries(loads_[t],
                       {.elements = range(t, state_.rank()),
                        .received = received,
                        .workers = static_cast<int>(workers)},
                       random.below(workers));
}

std::vector<std::byte> Owners::choose(std::span<const CheckedMessage* const> slices,
                                      const Notice& notice, OwnerChanges& changes) const {
  std::vector<std::uint64_t> received(tensors_.size());
  std::vector<std::vector<float>> sums = sums_of(slices, received, changes);
  const std::size_t me = state_.rank();
  std::vector<std::vector<std::uint32_t>> indices(tensors_.size());
  std::vector<std::vector<float>> values(tensors_.size());
  std::vector<FrameInput> frames;
  for (std::size_t t = 0; t < tensors_.size(); ++t) {
    const std::uint64_t k = entries_of(t, received[t]);
    if (k == 0) continue;
    largest(sums[t], k, static_cast<std::uint32_t>(cuts_[t][me]), indices[t], values[t]);
    if (indices[t].empty()) continue;
    frames.push_back({.tensor = static_cast<std::uint32_t>(tensors_[t]),
                      .elements = loads_[t].elements,
                      .indices = indices[t],
                      .values = values[t],
                      .value_type = values_of(options_, loads_[t]),
                      .coding = IndexCoding::automatic});
  }
  std::vector<std::vector<float>> decoded;
  std::vector<std::byte> message = message_of(notice, frames, decoded);
  for (std::size_t f = 0, t = 0; t < tensors_.size(); ++t) {
    ResidualRange range{tensors_[t], cuts_[t][me], std::move(sums[t]), {}};
    if (f < frames.size() && frames[f].tensor == tensors_[t]) {
      for (std::size_t i = 0; i < frames[f].indices.size(); ++i) {
        if (decoded[f][i] == 0.0f) continue;
        const std::uint32_t index = frames[f].indices[i];
        // Global momentum: what goes on moving stays here, where it competes with the next sum.
        range.values[index - range.begin] -= decoded[f][i] - options_.feedback() * decoded[f][i];
        if (loads_[t].entries < loads_[t].elements) range.masked.push_back(index);
      }
      ++f;
    }
    changes.ranges.push_back(std::move(range));
  }
  return message;
}

}  // namespace dgc::exchange
