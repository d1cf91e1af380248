// Images that stay on disk, in a folder per class.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace dgc::data {

struct ImageFolder {
  struct Entry {
    std::filesystem::path file;
    std::int64_t label = 0;  ///< index into classes
  };
  std::vector<std::string> classes;  ///< names of the folders, sorted
  std::vector<Entry> entries;        ///< by class, then by name
};

/// Lists the JPEGs (.jpg, .jpeg, in any case) of a folder per class, those of Tiny-ImageNet's
/// `class/images/` among them; also Tiny-ImageNet's `val`, whose classes are in
/// `val_annotations.txt`. Hidden files are left out. Nothing is decoded.
/// Throws Error(io): no such folder, no classes, a class without images (named).
ImageFolder scan_image_folder(const std::filesystem::path& folder);

/// `train` and `val` of a set: both lists have the classes of `train`, in the same order.
struct ImageFolders {
  ImageFolder train;
  ImageFolder valid;
};

/// Scans `folder/train` and `folder/val` (or `valid`, `validation`, `test`). Throws Error(io) as
/// above, and for a class that is in `val` only.
ImageFolders scan_image_folders(const std::filesystem::path& folder);

}  // namespace dgc::data
