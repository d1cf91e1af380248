#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>

#include "data/check_parts.h"
#include "data/cifar.h"
#include "data/digest.h"
#include "data/idx.h"
#include "data/image_folder.h"
#include "data/jpeg.h"

namespace dgc::data {
namespace {

namespace fs = std::filesystem;

struct KnownFile {
  const char* name;
  const char* md5;
};

/// MD5s of the unpacked files. Publishers give those of the .gz files, and copies of these differ
/// in the name and time that gzip stores (Debian's lack them), the contents do not.
struct KnownIdx {
  const char* kind;
  std::array<KnownFile, 4> files;
};
constexpr std::array<KnownIdx, 2> kKnownIdx = {{
    {"Fashion-MNIST",
     {{{"train-images-idx3-ubyte", "f4a8712d7a061bf5bd6d2ca38dc4d50a"},
       {"train-labels-idx1-ubyte", "9018921c3c673c538a1fc5bad174d6f9"},
       {"t10k-images-idx3-ubyte", "8181f5470baa50b63fa0f6fddb340f0a"},
       {"t10k-labels-idx1-ubyte", "15d484375f8d13e6eb1aabb0c3f46965"}}}},
    {"MNIST",
     {{{"train-images-idx3-ubyte", "6bbc9ace898e44ae57da46a324031adb"},
       {"train-labels-idx1-ubyte", "a25bea736e30d166cdddb491f175f624"},
       {"t10k-images-idx3-ubyte", "2646ac647ad5339dbf082846283269ea"},
       {"t10k-labels-idx1-ubyte", "27ae3e4e09519cfbb04c329615203637"}}}},
}};

constexpr std::array<KnownFile, 6> kCifar10 = {{
    {"data_batch_1.bin", "5dd7e06a14cb22eb9f671a540d1b7c25"},
    {"data_batch_2.bin", "5ea93a67294ea407fff1d09f752e9692"},
    {"data_batch_3.bin", "942cd6a4bcdd0dd3c604fbe906cb4421"},
    {"data_batch_4.bin", "ae636b3ba5c66a11e91e8cb52e771fcb"},
    {"data_batch_5.bin", "53f37980c15c3d472c316c40844f3f0d"},
    {"test_batch.bin", "803d5f7f4d78ea53de84dbe85f74fb6d"},
}};

std::string described(const ImageSet& set, const char* half) {
  return fmt::format("{}: {} images of {} x {} x {}, {} classes", half, with_commas(set.count),
                     set.channels, set.height, set.width, set.classes.size());
}

/// Digests of the four files that can be read, in the order of the tables; others are empty.
std::array<std::string, 4> idx_digests(const fs::path& folder) {
  std::array<std::string, 4> digests;
  for (std::size_t i = 0; i < digests.size(); ++i) {
    const auto file = find_idx(folder, kKnownIdx[0].files[i].name);
    CheckedData ignored;  // what cannot be read has been reported by the loader
    if (file) attempt(ignored, [&] { digests[i] = md5_of_contents(*file); });
  }
  return digests;
}

void compare_idx(const fs::path& folder, CheckedData& checked) {
  const std::array<std::string, 4> digests = idx_digests(folder);
  const auto matches = [&](const KnownIdx& known) {
    std::size_t count = 0;
    for (std::size_t i = 0; i < digests.size(); ++i) count += digests[i] == known.files[i].md5;
    return count;
  };
  const auto& best = matches(kKnownIdx[0]) >= matches(kKnownIdx[1]) ? kKnownIdx[0] : kKnownIdx[1];
  if (matches(best) == 0) {
    checked.facts.emplace_back("by their MD5s these are not the files of MNIST or Fashion-MNIST");
    return;
  }
  checked.kind = best.kind;
  if (matches(best) == digests.size()) {
    checked.facts.push_back(
        fmt::format("unpacked, all four files have the MD5s of {}'s", best.kind));
    return;
  }
  for (std::size_t i = 0; i < digests.size(); ++i) {
    if (digests[i].empty() || digests[i] == best.files[i].md5) continue;
    checked.problems.push_back(fmt::format("{}: MD5 of the contents is {}; of {} it is {}",
                                           find_idx(folder, best.files[i].name)->string(),
                                           digests[i], best.kind, best.files[i].md5));
  }
}

struct Sizes {
  std::int64_t shortest = std::numeric_limits<std::int64_t>::max();
  std::int64_t longest = 0;
  std::int64_t unreadable = 0;
};

void read_images(const ImageFolder& images, const CheckOptions& options, std::size_t total,
                 std::size_t& done, Sizes& sizes, CheckedData& checked) {
  for (const ImageFolder::Entry& entry : images.entries) {
    const bool good = attempt(checked, [&] {
      const Picture picture =
          options.quick ? read_jpeg_header(entry.file) : decode_jpeg(entry.file);
      sizes.shortest = std::min({sizes.shortest, picture.height, picture.width});
      sizes.longest = std::max({sizes.longest, picture.height, picture.width});
    });
    if (!good) ++sizes.unreadable;
    ++done;
    if (options.progress) options.progress(done, total);
  }
}

/// ImageNet's classes are called by WordNet numbers: n01440764.
bool has_wordnet_names(const ImageFolder& images) {
  return std::all_of(images.classes.begin(), images.classes.end(), [](const std::string& name) {
    return name.size() == 9 && name[0] == 'n' &&
           name.find_first_not_of("0123456789", 1) == std::string::npos;
  });
}

void compare_count(const char* set, const char* half, const ImageFolder& images,
                   std::int64_t expected, CheckedData& checked) {
  const auto count = static_cast<std::int64_t>(images.entries.size());
  if (count == expected) {
    checked.facts.push_back(fmt::format("{}: as many images as {} has", half, set));
    return;
  }
  checked.problems.push_back(fmt::format("{}: {} images; {} has {}", half, with_commas(count), set,
                                         with_commas(expected)));
}

}  // namespace

void check_idx(const fs::path& folder, CheckedData& checked) {
  checked.kind = "IDX images";
  std::vector<ImageSet> sets;
  for (const bool train : {true, false}) {
    attempt(checked, [&] {
      sets.push_back(load_idx(folder, train));
      checked.facts.push_back(described(sets.back(), train ? "train" : "test"));
    });
  }
  if (sets.size() == 2) attempt(checked, [&] { require_same_shape(sets[0], sets[1]); });
  compare_idx(folder, checked);
}

void check_cifar10(const fs::path& folder, CheckedData& checked) {
  checked.kind = "CIFAR-10";
  for (const bool train : {true, false}) {
    attempt(checked, [&] {
      checked.facts.push_back(described(load_cifar10(folder, train), train ? "train" : "test"));
    });
  }
  std::size_t same = 0;
  for (const KnownFile& file : kCifar10) {
    const fs::path path = cifar10_folder(folder) / file.name;
    if (!fs::is_regular_file(path)) continue;
    attempt(checked, [&] {
      const std::string md5 = md5_of_file(path);
      same += md5 == file.md5;
      if (md5 != file.md5) {
        checked.problems.push_back(fmt::format("{}: MD5 {}; of CIFAR-10's binary version it is {}",
                                               path.string(), md5, file.md5));
      }
    });
  }
  if (same == kCifar10.size())
    checked.facts.emplace_back("all files have the MD5s of CIFAR-10's binary version");
}

void check_images(const fs::path& folder, const CheckOptions& options, CheckedData& checked) {
  checked.kind = "images by class";
  const bool split = fs::is_directory(folder / "train");
  ImageFolders images;
  if (!attempt(checked, [&] {
        if (split) {
          images = scan_image_folders(folder);
        } else {
          images.train = scan_image_folder(folder);
        }
      })) {
    return;
  }
  checked.facts.push_back(fmt::format("{} classes", with_commas(std::ssize(images.train.classes))));
  if (split) {
    checked.facts.push_back(
        fmt::format("train: {} images", with_commas(std::ssize(images.train.entries))));
    checked.facts.push_back(
        fmt::format("validation: {} images", with_commas(std::ssize(images.valid.entries))));
  } else {
    checked.facts.push_back(
        fmt::format("{} images, in one part; training wants folders train and "
                    "val of such folders",
                    with_commas(std::ssize(images.train.entries))));
  }
  if (split && has_wordnet_names(images.train)) {
    if (images.train.classes.size() == 1000) {
      compare_count("ImageNet", "train", images.train, 1'281'167, checked);
      compare_count("ImageNet", "validation", images.valid, 50'000, checked);
    } else if (images.train.classes.size() == 200) {
      compare_count("Tiny-ImageNet", "train", images.train, 100'000, checked);
      compare_count("Tiny-ImageNet", "validation", images.valid, 10'000, checked);
    }
  }
  Sizes sizes;
  std::size_t done = 0;
  const std::size_t total = images.train.entries.size() + images.valid.entries.size();
  read_images(images.train, options, total, done, sizes, checked);
  read_images(images.valid, options, total, done, sizes, checked);
  if (sizes.longest > 0) {
    checked.facts.push_back(fmt::format("sides of {} to {} pixels", sizes.shortest, sizes.longest));
  }
  const std::int64_t good = static_cast<std::int64_t>(total) - sizes.unreadable;
  checked.facts.push_back(fmt::format(
      "{} of {} images {}", with_commas(good), with_commas(static_cast<std::int64_t>(total)),
      options.quick ? "have a good header (quick: not decoded)" : "can be decoded"));
}

}  // namespace dgc::data
