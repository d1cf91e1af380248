// The parameters of a run, as plain floats, and how a commit changes them. Hub and members have the
// same, bit for bit.
#pragma once

#include <filesystem>
#include <span>
#include <vector>

#include "hub/commit.h"
#include "hub/terms.h"

namespace dgc::hub {

class Replica {
 public:
  /// All zeros, at round 0. `buffers` are those of batch normalisation and the like.
  Replica(std::vector<TensorSpec> model, std::vector<TensorSpec> buffers, const Terms& terms);
  Replica(Replica&&) noexcept = default;
  Replica& operator=(Replica&&) noexcept = default;

  const std::vector<TensorSpec>& model() const noexcept { return model_; }
  const std::vector<TensorSpec>& buffer_specs() const noexcept { return buffer_specs_; }
  std::uint64_t round() const noexcept { return round_; }
  std::vector<std::span<float>> parameters();
  /// All buffers, one after the other.
  std::vector<float>& buffers() noexcept { return buffers_; }
  const std::vector<float>& buffers() const noexcept { return buffers_; }

  /// Throws Error, with nothing changed: wrong_order unless it is the next round's; diverged where
  /// it has another hash of the parameters; those of messages.
  void apply(const Commit& commit);

  /// Of weight decay, or of the sum; empty where the terms need none.
  std::span<const float> momentum() const noexcept { return momentum_; }

  std::uint64_t hash() const;

  /// A packet with everything. `extra` are byte strings of the caller's own.
  Bytes snapshot(const nlohmann::json& more = {},
                 std::span<const std::span<const std::byte>> extra = {}) const;
  /// Takes it over. Returns the packet, for `more` and `extra`, which begin at first_extra().
  /// Throws Error, with nothing changed: state_mismatch for another model.
  Packet load(std::span<const std::byte> snapshot);
  static constexpr std::size_t first_extra() { return 3; }

 private:
  std::vector<TensorSpec> model_, buffer_specs_;
  Terms terms_;
  std::uint64_t round_ = 0;
  std::vector<float> values_;    // of all tensors, one after the other
  std::vector<float> momentum_;  // of weight decay, or of the sum (momentum_correction off)
  std::vector<float> buffers_;
  std::vector<std::span<float>> by_tensor_;
};

}  // namespace dgc::hub
