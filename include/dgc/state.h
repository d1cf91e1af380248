// What a worker keeps between steps: velocity u and residual v of every parameter tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace dgc {

/// A parameter tensor as the compressor sees it.
struct TensorSpec {
  std::string name;
  std::vector<std::int64_t> shape;
  /// Sent whole at every step: the paper's rule for biases and batch-norm.
  bool dense = false;

  /// A spec that is dense exactly when it has fewer than two dimensions.
  static TensorSpec of(std::string name, std::vector<std::int64_t> shape);

  std::uint64_t elements() const noexcept;
  /// "64x3x7x7", "scalar" for no dimensions.
  std::string shape_text() const;
  bool operator==(const TensorSpec&) const = default;
};

/// What a state file holds, without its tensors.
struct StateInfo {
  std::uint32_t rank = 0;
  std::uint32_t workers = 1;
  std::uint64_t step = 0;
  bool has_velocity = true;
  struct Tensor {
    TensorSpec spec;
    double velocity_norm = 0.0;
    double residual_norm = 0.0;
    std::uint64_t residual_nonzero = 0;
  };
  std::vector<Tensor> tensors;
  std::uint64_t bytes = 0;
};

/// u and v of every tensor, and the step. Owned by the caller, used by a Compressor. Not
/// thread-safe; movable.
class State {
 public:
  /// All zeros at step 0. `with_velocity` is false for momentum 0, which needs no u.
  /// Throws Error(invalid_argument): no such rank, negative sizes, duplicate names, a tensor of
  /// 2^32 elements or more.
  explicit State(std::vector<TensorSpec> tensors, std::uint32_t rank = 0, std::uint32_t workers = 1,
                 bool with_velocity = true);
  State(State&&) noexcept;
  State& operator=(State&&) noexcept;
  ~State();

  std::uint32_t rank() const noexcept;
  std::uint32_t workers() const noexcept;
  /// Steps committed so far; the schedule's position.
  std::uint64_t step() const noexcept;
  void set_step(std::uint64_t step) noexcept;
  bool has_velocity() const noexcept;

  const std::vector<TensorSpec>& tensors() const noexcept;
  /// u of a tensor; empty when the state has no velocity. 64-byte aligned.
  std::span<float> velocity(std::size_t tensor) noexcept;
  std::span<const float> velocity(std::size_t tensor) const noexcept;
  /// v of a tensor. 64-byte aligned.
  std::span<float> residual(std::size_t tensor) noexcept;
  std::span<const float> residual(std::size_t tensor) const noexcept;

  /// Writes a state file: to a temporary name, flushed to disk, then renamed. On Error(io) the file
  /// that was there before is untouched.
  void save(const std::filesystem::path& file) const;

  /// Reads what the same rank of the same number of workers saved. Throws Error: io, the message
  /// codes for damage, state_mismatch when rank, workers or names differ, shape_mismatch with both
  /// shapes. On any Error this state is unchanged.
  void load(const std::filesystem::path& file);

  /// Reads the state of a run with any number of workers: `files` are those of all its ranks, in
  /// any order. Old rank i goes to rank i mod workers(), so that the sums of u and of v over all
  /// workers are conserved. Errors as for load().
  void load(std::span<const std::filesystem::path> files);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Validates a state file held in memory (checksum, structure, every value finite) and describes
/// it.
StateInfo inspect_state(std::span<const std::byte> contents);

}  // namespace dgc
