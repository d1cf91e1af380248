#include "data/image_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>

#include "dgc/error.h"

namespace dgc::data {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLayout =
    "the layout is a folder per class with its JPEGs; `dgc data` tells where to get such sets";

[[noreturn]] void fail(const fs::path& folder, std::string problem, std::string hint = kLayout) {
  throw Error(ErrorCode::io, "scan images", folder.string(), std::move(problem), std::move(hint));
}

bool hidden(const fs::path& path) { return path.filename().string().starts_with("."); }

bool is_jpeg(const fs::path& path) {
  std::string extension = path.extension().string();
  for (char& c : extension) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return extension == ".jpg" || extension == ".jpeg";
}

/// What is in a folder and passes, sorted: the order of a listing is the file system's.
template <typename Passes>
std::vector<fs::path> listing(const fs::path& folder, Passes passes) {
  std::vector<fs::path> paths;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (!hidden(it->path()) && passes(*it)) paths.push_back(it->path());
  }
  if (error) fail(folder, fmt::format("cannot be listed: {}", error.message()), "");
  std::sort(paths.begin(), paths.end());
  return paths;
}

std::vector<fs::path> jpegs(const fs::path& folder) {
  return listing(folder, [](const fs::directory_entry& entry) {
    return is_jpeg(entry.path()) && entry.is_regular_file();
  });
}

/// Tiny-ImageNet's val: all images in one folder, and lines "file<tab>class<tab>box" beside it.
ImageFolder scan_annotated(const fs::path& folder, const fs::path& annotations) {
  std::ifstream file(annotations);
  std::map<std::string, std::vector<fs::path>> by_class;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    std::istringstream words(line);
    std::string name;
    std::string label;
    if (!(words >> name >> label))
      fail(annotations, fmt::format("line {} has no file and class", number), "");
    if (!fs::is_regular_file(folder / "images" / name))
      fail(annotations, fmt::format("line {}: no {} in images/", number, name), "");
    by_class[label].push_back(folder / "images" / name);
  }
  if (by_class.empty()) fail(annotations, "is empty or cannot be read", "");
  ImageFolder result;
  for (auto& [label, files] : by_class) {
    std::sort(files.begin(), files.end());
    for (fs::path& path : files)
      result.entries.push_back({std::move(path), static_cast<std::int64_t>(result.classes.size())});
    result.classes.push_back(label);
  }
  return result;
}

}  // namespace

ImageFolder scan_image_folder(const fs::path& folder) {
  if (!fs::is_directory(folder)) fail(folder, "no such folder");
  const fs::path annotations = folder / "val_annotations.txt";
  if (fs::is_regular_file(annotations) && fs::is_directory(folder / "images"))
    return scan_annotated(folder, annotations);

  const std::vector<fs::path> classes =
      listing(folder, [](const fs::directory_entry& entry) { return entry.is_directory(); });
  if (classes.empty()) {
    const std::size_t loose = jpegs(folder).size();
    fail(folder, loose == 0 ? "has no folders of classes"
                            : fmt::format("has {} images, but no folders of classes", loose));
  }
  ImageFolder result;
  for (const fs::path& path : classes) {
    std::vector<fs::path> files = jpegs(path);
    if (files.empty() && fs::is_directory(path / "images")) files = jpegs(path / "images");
    if (files.empty()) fail(folder, fmt::format("class {} has no JPEGs", path.filename().string()));
    for (fs::path& file : files)
      result.entries.push_back({std::move(file), static_cast<std::int64_t>(result.classes.size())});
    result.classes.push_back(path.filename().string());
  }
  return result;
}

ImageFolders scan_image_folders(const fs::path& folder) {
  if (!fs::is_directory(folder)) fail(folder, "no such folder");
  fs::path valid_folder;
  for (const char* const name : {"val", "valid", "validation", "test"}) {
    if (valid_folder.empty() && fs::is_directory(folder / name)) valid_folder = folder / name;
  }
  if (!fs::is_directory(folder / "train")) fail(folder, "has no folder train");
  if (valid_folder.empty()) fail(folder, "has no folder val (or valid, validation, test)");
  ImageFolders result{scan_image_folder(folder / "train"), scan_image_folder(valid_folder)};
  // A part of the classes is fine for evaluation, as long as their numbers are those of training.
  const std::vector<std::string>& classes = result.train.classes;
  std::vector<std::int64_t> number;
  for (const std::string& name : result.valid.classes) {
    const auto found = std::lower_bound(classes.begin(), classes.end(), name);
    if (found == classes.end() || *found != name)
      fail(valid_folder, fmt::format("class {} is not in train", name), "");
    number.push_back(found - classes.begin());
  }
  for (ImageFolder::Entry& entry : result.valid.entries)
    entry.label = number[static_cast<std::size_t>(entry.label)];
  result.valid.classes = classes;
  return result;
}

}  // namespace dgc::data
