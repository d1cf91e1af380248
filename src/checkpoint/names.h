// What the files and directories of checkpoints are called. Nothing else is ever removed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace dgc::checkpoint {

/// How far a directory is on its way, which its name ends with.
enum class Stage {
  whole,     ///< "": a checkpoint
  replaced,  ///< ".old": the one before, until the new one of the same step is on all disks
  partial,   ///< ".tmp": being written; complete when it has a manifest
  gone,      ///< ".gone": being removed
};

inline constexpr std::string_view kManifestName = "manifest.json";

/// "step-000000001200", with the ending of the stage.
std::string step_name(std::uint64_t step, Stage stage = Stage::whole);

struct StepName {
  std::uint64_t step;
  Stage stage;
};
/// Exactly what step_name gives; nothing for any other text.
std::optional<StepName> parse_step_name(std::string_view name);

/// "rank-00003.state".
std::string rank_file_name(int rank);
std::optional<int> parse_rank_file_name(std::string_view name);

/// ".dgc-probe-0123456789abcdef-00003": by which ranks find out who sees the same folder.
std::string probe_name(std::uint64_t nonce, int rank);
bool is_probe_name(std::string_view name);

/// Why a file that all ranks have in common cannot be called that; "" when it can.
std::string problem_of_shared_name(std::string_view name);

}  // namespace dgc::checkpoint
