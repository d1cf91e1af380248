// u and v in one array each, and their way to files and back, also to another number of workers.
#include "dgc/state.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>
#include <memory>
#include <set>

#include "base/buffer.h"
#include "base/file.h"
#include "compress/reshard.h"
#include "compress/state_file.h"
#include "dgc/error.h"
#include "dgc/wire.h"

namespace dgc {
namespace {

constexpr std::size_t kAlignFloats = 16;

[[noreturn]] void reject(std::string subject, std::string problem, std::string hint = {}) {
  throw Error(ErrorCode::invalid_argument, "state", std::move(subject), std::move(problem),
              std::move(hint));
}

void check_spec(const TensorSpec& spec) {
  if (spec.name.empty() || spec.name.size() > 0xFFFF) {
    reject("a tensor", "its name is empty or longer than 65535 bytes");
  }
  if (spec.shape.size() > 0xFF) reject(fmt::format("'{}'", spec.name), "more than 255 dimensions");
  std::uint64_t elements = 1;
  for (const std::int64_t size : spec.shape) {
    if (size < 0) reject(fmt::format("'{}'", spec.name), fmt::format("a dimension of {}", size));
    if (static_cast<std::uint64_t>(size) > kMaxElements ||
        (elements *= static_cast<std::uint64_t>(size)) > kMaxElements) {
      reject(fmt::format("'{}'", spec.name), "2^32 elements or more", "split the tensor");
    }
  }
}

/// A file of a state, for as long as its view is used.
struct LoadedFile {
  explicit LoadedFile(const std::filesystem::path& path)
      : name(path.string()), file(path), view(compress::parse_state(file.contents(), name)) {}
  std::string name;
  MappedFile file;
  compress::StateView view;
};

void add_array(std::span<float> target, std::span<const std::byte> source) {
  for (std::size_t i = 0; i < target.size(); ++i) {
    float value = 0.0f;
    std::memcpy(&value, source.data() + i * sizeof(float), sizeof value);
    target[i] += value;
  }
}

}  // namespace

TensorSpec TensorSpec::of(std::string name, std::vector<std::int64_t> shape) {
  const bool dense = shape.size() < 2;
  return {std::move(name), std::move(shape), dense};
}

std::uint64_t TensorSpec::elements() const noexcept {
  std::uint64_t count = 1;
  for (const std::int64_t size : shape) count *= static_cast<std::uint64_t>(size);
  return count;
}

std::string TensorSpec::shape_text() const {
  return shape.empty() ? "scalar" : fmt::format("{}", fmt::join(shape, "x"));
}

struct State::Impl {
  std::vector<TensorSpec> tensors;
  std::uint32_t rank;
  std::uint32_t workers;
  std::uint64_t step = 0;
  std::vector<std::size_t> offsets;
  FloatBuffer velocity;
  FloatBuffer residual;

  std::span<float> part(FloatBuffer& buffer, std::size_t tensor) {
    if (buffer.size() == 0) return {};
    return {buffer.data() + offsets[tensor], tensors[tensor].elements()};
  }

  /// Everything that must agree before a file may be loaded, but for rank and workers.
  void check(const LoadedFile& file, bool has_velocity) const {
    const auto mismatch = [&](ErrorCode code, std::string problem) {
      throw Error(code, "load", file.name, std::move(problem),
                  "the state belongs to another model or other options; nothing was loaded");
    };
    const StateInfo& info = file.view.info;
    if (info.has_velocity != has_velocity) {
      mismatch(ErrorCode::state_mismatch, info.has_velocity
                                              ? "was saved with momentum, this run has none"
                                              : "was saved without momentum, this run has it");
    }
    for (std::size_t i = 0; i < std::min(tensors.size(), info.tensors.size()); ++i) {
      const TensorSpec& theirs = info.tensors[i].spec;
      const TensorSpec& ours = tensors[i];
      if (theirs.name != ours.name) {
        mismatch(
            ErrorCode::state_mismatch,
            fmt::format("tensor {} is '{}' in the file and '{}' here", i, theirs.name, ours.name));
      }
      if (theirs.shape != ours.shape) {
        mismatch(ErrorCode::shape_mismatch,
                 fmt::format("tensor '{}' is {} in the file and {} here", ours.name,
                             theirs.shape_text(), ours.shape_text()));
      }
      if (theirs.dense != ours.dense) {
        mismatch(ErrorCode::state_mismatch,
                 fmt::format("tensor '{}' is {} in the file and {} here", ours.name,
                             theirs.dense ? "dense" : "sparse", ours.dense ? "dense" : "sparse"));
      }
    }
    if (tensors.size() != info.tensors.size()) {
      mismatch(ErrorCode::state_mismatch,
               fmt::format("{} tensors in the file, {} here", info.tensors.size(), tensors.size()));
    }
  }
};

State::State(std::vector<TensorSpec> tensors, std::uint32_t rank, std::uint32_t workers,
             bool with_velocity)
    : impl_(std::make_unique<Impl>()) {
  if (rank >= workers) reject(fmt::format("rank {}", rank), fmt::format("of {} workers", workers));
  std::set<std::string_view> names;
  std::size_t total = 0;
  for (const TensorSpec& spec : tensors) {
    check_spec(spec);
    if (!names.insert(spec.name).second) {
      reject(fmt::format("'{}'", spec.name), "two tensors have this name");
    }
    impl_->offsets.push_back(total);
    total += (spec.elements() + kAlignFloats - 1) / kAlignFloats * kAlignFloats;
  }
  impl_->tensors = std::move(tensors);
  impl_->rank = rank;
  impl_->workers = workers;
  impl_->residual = FloatBuffer(total);
  // One float at least, so that "has velocity" does not depend on the tensors.
  if (with_velocity) impl_->velocity = FloatBuffer(std::max<std::size_t>(total, 1));
}

State::State(State&&) noexcept = default;
State& State::operator=(State&&) noexcept = default;
State::~State() = default;

std::uint32_t State::rank() const noexcept { return impl_->rank; }
std::uint32_t State::workers() const noexcept { return impl_->workers; }
std::uint64_t State::step() const noexcept { return impl_->step; }
void State::set_step(std::uint64_t step) noexcept { impl_->step = step; }
bool State::has_velocity() const noexcept { return impl_->velocity.size() > 0; }
const std::vector<TensorSpec>& State::tensors() const noexcept { return impl_->tensors; }

std::span<float> State::velocity(std::size_t tensor) noexcept {
  return impl_->part(impl_->velocity, tensor);
}
std::span<const float> State::velocity(std::size_t tensor) const noexcept {
  return impl_->part(impl_->velocity, tensor);
}
std::span<float> State::residual(std::size_t tensor) noexcept {
  return impl_->part(impl_->residual, tensor);
}
std::span<const float> State::residual(std::size_t tensor) const noexcept {
  return impl_->part(impl_->residual, tensor);
}

void State::save(const std::filesystem::path& file) const { compress::write_state(*this, file); }

void State::load(const std::filesystem::path& file) {
  const LoadedFile loaded(file);
  const StateInfo& info = loaded.view.info;
  if (info.rank != rank() || info.workers != workers()) {
    throw Error(ErrorCode::state_mismatch, "load", loaded.name,
                fmt::format("is of rank {} of {} workers, this is rank {} of {}", info.rank,
                            info.workers, rank(), workers()),
                "load the files of all old ranks together to go on with another number of workers");
  }
  impl_->check(loaded, has_velocity());
  for (std::size_t i = 0; i < tensors().size(); ++i) {
    const auto& arrays = loaded.view.arrays[i];
    if (!arrays.velocity.empty()) {
      std::memcpy(velocity(i).data(), arrays.velocity.data(), arrays.velocity.size());
    }
    if (!arrays.residual.empty()) {
      std::memcpy(residual(i).data(), arrays.residual.data(), arrays.residual.size());
    }
  }
  impl_->step = info.step;
}

void State::load(std::span<const std::filesystem::path> files) {
  const auto mismatch = [](const std::string& subject, std::string problem) {
    throw Error(ErrorCode::state_mismatch, "load", subject, std::move(problem),
                "give the files that all ranks wrote at one step; nothing was loaded");
  };
  if (files.empty()) mismatch("state", "no files given");
  std::vector<std::unique_ptr<LoadedFile>> by_rank(files.size());
  for (const std::filesystem::path& path : files) {
    auto loaded = std::make_unique<LoadedFile>(path);
    const StateInfo& info = loaded->view.info;
    impl_->check(*loaded, has_velocity());
    if (info.workers != files.size()) {
      mismatch(loaded->name,
               fmt::format("is one of {} workers, {} files given", info.workers, files.size()));
    }
    std::unique_ptr<LoadedFile>& slot = by_rank[info.rank];
    if (slot) mismatch(loaded->name, fmt::format("rank {} is also in {}", info.rank, slot->name));
    slot = std::move(loaded);
  }
  for (const auto& file : by_rank) {
    if (file->view.info.step != by_rank[0]->view.info.step) {
      mismatch(file->name, fmt::format("is of step {}, {} of step {}", file->view.info.step,
                                       by_rank[0]->name, by_rank[0]->view.info.step));
    }
  }
  // Summed into fresh memory in rank order: exact when the number of workers has not changed.
  State sum(impl_->tensors, rank(), workers(), has_velocity());
  for (const int old_rank :
       compress::old_ranks_of(static_cast<int>(rank()), static_cast<int>(workers()),
                              static_cast<int>(by_rank.size()))) {
    const compress::StateView& view = by_rank[static_cast<std::size_t>(old_rank)]->view;
    for (std::size_t i = 0; i < tensors().size(); ++i) {
      add_array(sum.velocity(i), view.arrays[i].velocity);
      add_array(sum.residual(i), view.arrays[i].residual);
    }
  }
  sum.set_step(by_rank[0]->view.info.step);
  // Into the same memory, because a Compressor may hold on to this state's buffers.
  for (std::size_t i = 0; i < tensors().size(); ++i) {
    std::copy(sum.velocity(i).begin(), sum.velocity(i).end(), velocity(i).begin());
    std::copy(sum.residual(i).begin(), sum.residual(i).end(), residual(i).begin());
  }
  impl_->step = sum.step();
}

}  // namespace dgc
