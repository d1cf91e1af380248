// A load in two calls. open() finds the checkpoint and makes sure that every rank can read what it
// needs:
//
//   1. All ranks tell each other what they see in their folders (take_inventory).
//   2. All choose the same checkpoint (choose). Ranks that do not see it get its manifest from one
//      that does (share_manifest).
//   3. Each compares the files that it needs with their checksums, and gets those that it does not
//      see from a rank that does (check_local_files, transfer_files).
//
// Checkpoint::load_state() then reads u and v, which is also where another number of ranks is dealt
// with. It fills a State of its own first: if one rank fails, no rank has changed anything.
#include "checkpoint/load.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "checkpoint/all_ranks.h"
#include "checkpoint/disk.h"
#include "checkpoint/inventory.h"
#include "compress/reshard.h"

namespace dgc::checkpoint {

namespace fs = std::filesystem;
using nlohmann::json;

struct Checkpoint::Impl {
  Group* group = nullptr;
  fs::path path;
  Manifest manifest;
  ReceivedFiles received;

  /// The file as errors call it.
  std::string subject_of(std::size_t file) const {
    return (path / manifest.files[file].name).string();
  }
  /// Where its bytes are: the same place, unless it came from another rank.
  fs::path source_of(std::size_t file) const {
    const auto at = received.find(file);
    return at != received.end() ? at->second->path() : path / manifest.files[file].name;
  }
};

namespace {

constexpr const char* kOpen = "open checkpoint";
constexpr const char* kLoad = "load checkpoint";

/// The contents that all ranks have chosen.
struct Choice {
  std::uint64_t step;
  std::uint64_t id;
};

Inventory take_inventory(Group& group, const fs::path& folder, std::optional<std::uint64_t> step) {
  const json wanted = step ? json(*step) : json("newest");
  const auto all = on_all_ranks(group, kOpen, [&] {
    return json{{"step", wanted}, {"seen", look_into(folder)}};
  });
  std::vector<json> seen;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    require_same(kOpen, group.world_rank(static_cast<int>(rank)), "the wanted step",
                 all[rank]["step"], all[0]["step"]);
    seen.push_back(all[rank]["seen"]);
  }
  return Inventory(seen);
}

/// What to do instead, if the checkpoint of `step` is no good.
std::string hint_below(const Inventory& inventory, std::uint64_t step) {
  for (const std::uint64_t earlier : inventory.steps()) {
    if (earlier >= step) continue;
    const auto id = inventory.judge(earlier).id;
    if (!id) continue;
    return fmt::format(
        "the newest good one before it is {}; to go on from there, move what is newer "
        "away, or open step {}",
        inventory.find(inventory.lowest(earlier, *id), earlier, *id)->path, earlier);
  }
  return "there is no good one before it";
}

Choice choose(const Inventory& inventory, const fs::path& folder,
              std::optional<std::uint64_t> wanted) {
  std::string problem;
  for (const std::uint64_t step : inventory.steps()) {
    if (wanted && step != *wanted) continue;
    const Verdict verdict = inventory.judge(step);
    if (verdict.error) {
      const Error& error = *verdict.error;
      std::string hint = error.hint().empty() ? "" : error.hint() + "; ";
      throw Error(error.code(), kOpen, error.subject(), error.problem(),
                  std::move(hint) + hint_below(inventory, step));
    }
    if (verdict.id) return {step, *verdict.id};
    if (problem.empty()) problem = fmt::format("{}: {}", step_name(step), verdict.missing);
  }
  if (problem.empty()) {
    throw Error(ErrorCode::io, kOpen, folder.string(),
                fmt::format("has no checkpoint of step {}", wanted.value_or(0)),
                hint_below(inventory, wanted.value_or(0)));
  }
  throw Error(ErrorCode::io, kOpen, folder.string(), problem,
              "start a rank that sees the disk of those, or copy them to one that is seen");
}

/// The manifest, also for ranks that do not see it: from the rank that has it in `directory`.
Manifest share_manifest(Group& group, int from, const fs::path& directory) {
  const auto all = on_all_ranks(group, kOpen, [&] {
    return group.rank() == from ? json(read_manifest(directory).text()) : json();
  });
  const auto text = all[static_cast<std::size_t>(from)].get<std::string>();
  return parse_manifest(std::as_bytes(std::span(text)), kManifestName.data());
}

/// Damage that the inventory alone shows: files that are missing, or should not be there.
void check_files_are_there(const Inventory& inventory, const Choice& choice,
                           const Manifest& manifest, const std::string& hint) {
  for (int rank = 0; rank < inventory.ranks(); ++rank) {
    const Sighting* const sighting = inventory.find(rank, choice.step, choice.id);
    if (sighting == nullptr) continue;
    if (!sighting->stray.empty()) {
      throw Error(ErrorCode::state_mismatch, kOpen, sighting->stray,
                  fmt::format("rank {}: does not belong to this checkpoint of {} workers", rank,
                              manifest.workers),
                  hint);
    }
    for (std::size_t file = 0; file < manifest.files.size(); ++file) {
      if (!sighting->expected[file]) continue;
      if (inventory.lowest_with(choice.step, choice.id, file) >= 0) continue;
      throw Error(ErrorCode::io, kOpen,
                  (fs::path(sighting->path) / manifest.files[file].name).string(),
                  fmt::format("rank {}: is missing", rank), hint);
    }
  }
}

/// Files that `rank` reads: all shared ones, and what becomes of old ranks' states.
std::vector<std::size_t> needed_by(int rank, int ranks, const Manifest& manifest) {
  std::vector<std::size_t> files;
  for (std::size_t i = 0; i < manifest.shared_files(); ++i) files.push_back(i);
  for (const int old : compress::old_ranks_of(rank, ranks, manifest.workers)) {
    files.push_back(manifest.rank_file(old));
  }
  return files;
}

/// Where the files come from that the ranks need.
struct Reads {
  std::vector<Transfer> transfers;  ///< of all ranks, the same list on each
  std::vector<std::size_t> local;   ///< that this rank reads from its own disk
};

Reads plan_reads(const Inventory& inventory, const Choice& choice, const Manifest& manifest,
                 const Group& group) {
  Reads reads;
  for (int rank = 0; rank < group.size(); ++rank) {
    const Sighting* const sighting = inventory.find(rank, choice.step, choice.id);
    for (const std::size_t file : needed_by(rank, group.size(), manifest)) {
      if (sighting == nullptr || !sighting->present[file]) {
        reads.transfers.push_back(
            {inventory.lowest_with(choice.step, choice.id, file), rank, file});
      } else if (rank == group.rank()) {
        reads.local.push_back(file);
      }
    }
  }
  return reads;
}

void check_local_files(Group& group, const Manifest& manifest, const fs::path& directory,
                       const std::vector<std::size_t>& files, const std::string& hint) {
  on_all_ranks(group, kOpen, [&] {
    for (const std::size_t file : files) {
      const fs::path path = directory / manifest.files[file].name;
      const MappedFile mapped(path);
      check_bytes(mapped.contents(), manifest.files[file], path.string(), hint);
    }
    return json();
  });
}

}  // namespace

std::optional<Checkpoint> open(Group& group, const fs::path& folder,
                               std::optional<std::uint64_t> step) {
  const Inventory inventory = take_inventory(group, folder, step);
  if (inventory.steps().empty() && !step) return std::nullopt;
  const Choice choice = choose(inventory, folder, step);
  const std::string hint = hint_below(inventory, choice.step);
  const int first = inventory.lowest(choice.step, choice.id);
  const Sighting* const mine = inventory.find(group.rank(), choice.step, choice.id);

  auto impl = std::make_unique<Checkpoint::Impl>();
  impl->group = &group;
  impl->path = mine != nullptr ? folder / step_name(choice.step, mine->stage)
                               : fs::path(inventory.find(first, choice.step, choice.id)->path);
  impl->manifest = share_manifest(group, first, impl->path);
  const Manifest& manifest = impl->manifest;
  check_files_are_there(inventory, choice, manifest, hint);

  const Reads reads = plan_reads(inventory, choice, manifest, group);
  check_local_files(group, manifest, impl->path, reads.local, hint);
  impl->received = transfer_files(group, kOpen, manifest, reads.transfers, impl->path, hint);
  return Checkpoint(std::move(impl));
}

Checkpoint::Checkpoint(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;
Checkpoint::~Checkpoint() = default;

std::uint64_t Checkpoint::step() const noexcept { return impl_->manifest.step; }
const std::string& Checkpoint::user() const noexcept { return impl_->manifest.user; }
int Checkpoint::workers() const noexcept { return impl_->manifest.workers; }
const fs::path& Checkpoint::path() const noexcept { return impl_->path; }

std::vector<std::byte> Checkpoint::shared(std::string_view name) const {
  const Manifest& manifest = impl_->manifest;
  for (std::size_t i = 0; i < manifest.shared_files(); ++i) {
    if (manifest.files[i].name != name) continue;
    const MappedFile file(impl_->source_of(i));
    const auto bytes = file.contents();
    check_bytes(bytes, manifest.files[i], impl_->subject_of(i));
    return {bytes.begin(), bytes.end()};
  }
  throw Error(ErrorCode::invalid_argument, kLoad, impl_->path.string(),
              fmt::format("has no shared file '{}'", name));
}

namespace {

void add(std::span<float> target, std::span<const float> source) {
  for (std::size_t i = 0; i < target.size(); ++i) target[i] += source[i];
}

void copy(std::span<float> target, std::span<const float> source) {
  std::copy(source.begin(), source.end(), target.begin());
}

/// Applies `combine` to u and v of every tensor.
template <typename Combine>
void combine_states(State& target, const State& source, Combine combine) {
  for (std::size_t i = 0; i < target.tensors().size(); ++i) {
    combine(target.velocity(i), source.velocity(i));
    combine(target.residual(i), source.residual(i));
  }
}

/// Why these states cannot go on with that checkpoint, before any file is read.
void check_kind(const Manifest& manifest, const State& state, const Group& group,
                const std::string& subject) {
  const auto refuse = [&](std::string problem) {
    throw Error(ErrorCode::state_mismatch, kLoad, subject, std::move(problem),
                "go on with as many ranks and hosts, and the exchange, that wrote it");
  };
  const auto workers = static_cast<std::uint32_t>(manifest.workers);
  const auto ranks = static_cast<std::uint32_t>(group.size());
  if (workers == ranks) {
    if (manifest.state_workers != state.workers()) {
      refuse(fmt::format("its states are of {} workers or hosts, those of this run of {}",
                         manifest.state_workers, state.workers()));
    }
    return;
  }
  // Each rank of a host has another share of every tensor: no sum of files is the state of another
  // number of ranks.
  if (manifest.state_workers != workers) {
    refuse(
        fmt::format("was written by {} ranks on {} hosts, each with a share of the state; {} "
                    "ranks cannot read that",
                    workers, manifest.state_workers, ranks));
  }
  if (state.workers() != ranks || state.rank() != static_cast<std::uint32_t>(group.rank())) {
    refuse(
        fmt::format("was written by {} ranks with a state each; this run has {} ranks with "
                    "states of {} hosts",
                    workers, ranks, state.workers()));
  }
}

}  // namespace

void Checkpoint::load_state(State& state) const {
  const Manifest& manifest = impl_->manifest;
  Group& group = *impl_->group;
  const bool same_ranks = manifest.workers == group.size();
  const auto load = [&](int old_rank) {
    const std::size_t file = manifest.rank_file(old_rank);
    State old(state.tensors(), same_ranks ? state.rank() : static_cast<std::uint32_t>(old_rank),
              manifest.state_workers, state.has_velocity());
    try {
      old.load(impl_->source_of(file));
    } catch (const Error& error) {
      throw Error(error.code(), kLoad, impl_->subject_of(file), error.problem(), error.hint());
    }
    return old;
  };
  // Beside the state, which changes only when all ranks have theirs.
  std::optional<State> sum;
  on_all_ranks(group, kLoad, [&] {
    check_kind(manifest, state, group, impl_->path.string());
    for (const int old_rank :
         compress::old_ranks_of(group.rank(), group.size(), manifest.workers)) {
      if (!sum) {
        sum = load(old_rank);
      } else {
        combine_states(*sum, load(old_rank), add);
      }
    }
    // More ranks than before: the new ones begin with nothing.
    if (!sum) sum.emplace(state.tensors(), state.rank(), state.workers(), state.has_velocity());
    return json();
  });
  combine_states(state, *sum, copy);
  state.set_step(manifest.state_step);
}

}  // namespace dgc::checkpoint
