// The state file: docs/format.md, "State files".
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "dgc/state.h"

namespace dgc::compress {

/// A state file in memory, checked; the spans point into it and need not be aligned.
struct StateView {
  StateInfo info;  // norms and counts are not filled in
  struct Arrays {
    std::span<const std::byte> velocity;
    std::span<const std::byte> residual;
  };
  std::vector<Arrays> arrays;
};

/// Checks structure, checksum and finiteness. `subject` names the file in errors. Allocates in
/// proportion to the contents only.
StateView parse_state(std::span<const std::byte> contents, const std::string& subject);

/// Writes `state` to `file` atomically.
void write_state(const State& state, const std::filesystem::path& file);

}  // namespace dgc::compress
