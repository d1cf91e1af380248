// What a folder of data holds, and whether it is whole.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace dgc::data {

struct CheckedData {
  /// "Fashion-MNIST", "MNIST", "IDX images", "CIFAR-10", "Penn Treebank", "AN4", "LibriSpeech",
  /// "images by class", "manifest", "text", "audio" or "unknown".
  std::string kind;
  std::vector<std::string> facts;     ///< counts, sizes, digests that were compared
  std::vector<std::string> problems;  ///< none: the set is whole
};

struct CheckOptions {
  /// Reads only the headers of JPEG and audio files, not all of their contents.
  bool quick = false;
  /// Called after each file of many: done so far, of how many.
  std::function<void(std::size_t done, std::size_t total)> progress;
};

/// Recognises a set by the names of its files. What is wrong with the data is in `problems`, not an
/// Error; throws Error(io) only when there is no such folder or it cannot be listed.
CheckedData check_data(const std::filesystem::path& folder, const CheckOptions& options = {});

}  // namespace dgc::data
