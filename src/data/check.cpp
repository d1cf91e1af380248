#include "data/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "data/catalogue.h"
#include "data/check_parts.h"
#include "data/cifar.h"
#include "data/digest.h"
#include "data/idx.h"
#include "dgc/error.h"

namespace dgc::data {
namespace {

namespace fs = std::filesystem;

bool has_idx(const fs::path& folder) {
  for (const bool train : {true, false}) {
    const IdxNames names = idx_names(train);
    if (find_idx(folder, names.images) || find_idx(folder, names.labels)) return true;
  }
  return false;
}

bool has_cifar10(const fs::path& folder) {
  const fs::path where = cifar10_folder(folder);
  for (const bool train : {true, false}) {
    for (const std::string& name : cifar10_files(train))
      if (fs::exists(where / name)) return true;
  }
  return false;
}

bool has_ptb(const fs::path& folder) {
  return fs::exists(folder / "ptb.train.txt") ||
         fs::exists(folder / "simple-examples" / "data" / "ptb.train.txt");
}

bool has_an4(const fs::path& folder) {
  return fs::exists(folder / "etc" / "an4_train.fileids") ||
         fs::exists(folder / "etc" / "an4_train.transcription");
}

std::string lower_extension(const fs::path& path) {
  std::string extension = path.extension().string();
  for (char& c : extension) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return extension;
}

/// Whether a file of such a name is in the folder or, `depth` levels deep, below it. Stops at the
/// first one.
template <typename Wanted>
bool has_file(const fs::path& folder, int depth, Wanted wanted) {
  std::error_code error;
  for (fs::recursive_directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    if (it.depth() >= depth) it.disable_recursion_pending();
    if (wanted(it->path())) return true;
  }
  return false;
}

bool is_archive(const DataArchive& archive, const fs::path& folder) {
  return fs::is_regular_file(folder / archive.name);
}

/// Archives that lie in the folder, against the published digests.
void check_archives(const fs::path& folder, const CheckOptions& options, CheckedData& checked) {
  for (const DataSet& set : catalogue()) {
    for (const DataArchive& archive : set.archives) {
      if (!is_archive(archive, folder)) continue;
      if (options.quick) {
        checked.facts.push_back(archive.name + " is here; its MD5 was not compared (quick)");
        continue;
      }
      attempt(checked, [&] {
        const std::string md5 = md5_of_file(folder / archive.name);
        if (md5 == archive.md5) {
          checked.facts.push_back(archive.name + " has the published MD5");
        } else {
          checked.problems.push_back(
              fmt::format("{}: MD5 {}; the published one is {}; get it again",
                          (folder / archive.name).string(), md5, archive.md5));
        }
      });
    }
  }
}

/// By the most telling names first: an AN4 folder has tables, an image folder may have text files.
void dispatch(const fs::path& folder, const CheckOptions& options, CheckedData& checked) {
  const auto is_jpeg = [](const fs::path& path) {
    return lower_extension(path) == ".jpg" || lower_extension(path) == ".jpeg";
  };
  const auto ends_with = [](const char* ending) {
    return [ending](const fs::path& path) { return path.filename().string().ends_with(ending); };
  };
  if (has_idx(folder)) return check_idx(folder, checked);
  if (has_cifar10(folder)) return check_cifar10(folder, checked);
  if (has_ptb(folder)) return check_ptb(folder, checked);
  if (has_an4(folder)) return check_an4(folder, options, checked);
  if (has_file(folder, 3, is_jpeg)) return check_images(folder, options, checked);
  if (has_file(folder, 4, ends_with(".trans.txt")))
    return check_librispeech(folder, options, checked);
  if (has_file(folder, 0, ends_with(".tsv"))) return check_manifest(folder, options, checked);
  if (has_file(folder, 0, ends_with(".txt"))) return check_text(folder, checked);
  checked.kind = "unknown";
  if (checked.facts.empty() && checked.problems.empty()) {
    checked.problems.emplace_back(
        "holds no data set that dgc knows: no IDX, CIFAR-10, JPEG, .txt, .tsv or LibriSpeech "
        "files");
  } else {
    checked.facts.emplace_back("nothing is unpacked here");
  }
}

}  // namespace

bool attempt(CheckedData& checked, const std::function<void()>& work) {
  try {
    work();
    return true;
  } catch (const std::exception& error) {
    checked.problems.emplace_back(error.what());
    return false;
  }
}

CheckedData check_data(const fs::path& folder, const CheckOptions& options) {
  CheckedData checked;
  std::error_code error;
  if (fs::equivalent(folder, data_set("bible").places[0], error)) {
    check_bible(checked);
    return checked;
  }
  if (!fs::is_directory(folder)) {
    throw Error(ErrorCode::io, "check", folder.string(),
                fs::exists(folder) ? "is not a folder" : "no such folder",
                "`dgc data` lists the data sets and where they are");
  }
  const fs::directory_iterator listing(folder, error);
  if (error) {
    throw Error(ErrorCode::io, "check", folder.string(),
                fmt::format("cannot be listed: {}", error.message()));
  }
  if (fs::equivalent(folder, data_set("asterisk").places[0], error)) {
    check_asterisk(options, checked);
    return checked;
  }
  if (const auto doc = find_data_quietly("linux-doc"); doc && fs::equivalent(folder, *doc, error)) {
    check_linux_doc(folder, checked);
    return checked;
  }
  check_archives(folder, options, checked);
  dispatch(folder, options, checked);
  return checked;
}

}  // namespace dgc::data
