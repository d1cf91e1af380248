#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "checkpoint/disk.h"
#include "checkpoint/impl.h"
#include "checkpoint/together.h"

namespace dgc::checkpoint {
namespace {

constexpr const char* kOperation = "load checkpoint";

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
    throw Error(ErrorCode::state_mismatch, kOperation, subject, std::move(problem),
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

std::vector<int> old_ranks_of(int rank, int ranks, int workers) {
  std::vector<int> old;
  for (int i = rank; i < workers; i += ranks) old.push_back(i);
  return old;
}

std::string Checkpoint::Impl::subject_of(std::size_t file) const {
  return (path / manifest.files[file].name).string();
}

std::filesystem::path Checkpoint::Impl::source_of(std::size_t file) const {
  const auto at = fetched.find(file);
  return at != fetched.end() ? at->second->path() : path / manifest.files[file].name;
}

Checkpoint::Checkpoint(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;
Checkpoint::~Checkpoint() = default;

std::uint64_t Checkpoint::step() const noexcept { return impl_->manifest.step; }
const std::string& Checkpoint::user() const noexcept { return impl_->manifest.user; }
int Checkpoint::workers() const noexcept { return impl_->manifest.workers; }
const std::filesystem::path& Checkpoint::path() const noexcept { return impl_->path; }

std::vector<std::string> Checkpoint::shared_names() const {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < impl_->manifest.shared_files(); ++i) {
    names.push_back(impl_->manifest.files[i].name);
  }
  return names;
}

std::vector<std::byte> Checkpoint::shared(std::string_view name) const {
  const Manifest& manifest = impl_->manifest;
  for (std::size_t i = 0; i < manifest.shared_files(); ++i) {
    if (manifest.files[i].name != name) continue;
    const MappedFile file(impl_->source_of(i));
    const auto bytes = file.contents();
    check_bytes(bytes, manifest.files[i], impl_->subject_of(i));
    return {bytes.begin(), bytes.end()};
  }
  throw Error(ErrorCode::invalid_argument, kOperation, impl_->path.string(),
              fmt::format("has no shared file '{}'", name));
}

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
      throw Error(error.code(), kOperation, impl_->subject_of(file), error.problem(), error.hint());
    }
    return old;
  };
  // Beside the state, which changes only when all ranks have theirs.
  std::optional<State> sum;
  agree(group, kOperation, [&] {
    check_kind(manifest, state, group, impl_->path.string());
    for (const int old_rank : old_ranks_of(group.rank(), group.size(), manifest.workers)) {
      if (!sum) {
        sum = load(old_rank);
      } else {
        combine_states(*sum, load(old_rank), add);
      }
    }
    // More ranks than before: the new ones begin with nothing.
    if (!sum) sum.emplace(state.tensors(), state.rank(), state.workers(), state.has_velocity());
    return nlohmann::json();
  });
  combine_states(state, *sum, copy);
  state.set_step(manifest.state_step);
}

}  // namespace dgc::checkpoint
