// Parts of `dgc inspect` that have a file of their own.
#pragma once

#include <filesystem>

namespace dgc::app {

/// Shows a checkpoint, or those of a folder. Throws Error for a damaged checkpoint, and for a
/// directory that is neither.
void show_checkpoints(const std::filesystem::path& directory, bool as_json);

/// Does the commits of a hub's run again. False where the directory has none.
bool show_hub(const std::filesystem::path& directory, bool as_json);

}  // namespace dgc::app
