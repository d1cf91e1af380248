#include "data/cifar.h"

#include <fmt/format.h>

#include "base/file.h"
#include "dgc/error.h"

namespace dgc::data {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kSide = 32;
constexpr std::size_t kImage = 3 * kSide * kSide;
constexpr std::size_t kRecord = 1 + kImage;
constexpr std::size_t kRecords = 10000;  // of each file

/// Mapping tells the real size before anything is allocated.
void append_file(const fs::path& path, ImageSet& set) {
  if (!fs::is_regular_file(path)) {
    throw Error(ErrorCode::io, "read", path.parent_path().string(),
                fs::is_directory(path.parent_path())
                    ? fmt::format("has no {}", path.filename().string())
                    : fmt::format("no such folder; looked for {} in it", path.filename().string()),
                "unpack cifar-10-binary.tar.gz of https://www.cs.toronto.edu/~kriz/cifar.html; "
                "`dgc data` tells how");
  }
  const MappedFile file(path);
  const auto bytes = file.contents();
  if (bytes.size() != kRecord * kRecords) {
    throw Error(
        bytes.size() < kRecord * kRecords ? ErrorCode::truncated : ErrorCode::trailing_bytes,
        "read", path.string(),
        fmt::format("{} bytes, that is {} whole records of {}; there should be {} bytes, "
                    "{} records",
                    bytes.size(), bytes.size() / kRecord, kRecord, kRecord * kRecords, kRecords),
        "get the file again: it is not CIFAR-10's binary version, or not all of it");
  }
  for (std::size_t i = 0; i < kRecords; ++i) {
    const auto record = bytes.subspan(i * kRecord, kRecord);
    const auto label = std::to_integer<std::int64_t>(record[0]);
    if (label >= static_cast<std::int64_t>(set.classes.size())) {
      throw Error(ErrorCode::index_out_of_range, "read", path.string(),
                  fmt::format("label {} of record {} (from 0) is not below {}", label, i,
                              set.classes.size()));
    }
    set.labels.push_back(label);
    const auto* const pixels = reinterpret_cast<const std::uint8_t*>(record.data()) + 1;
    set.pixels.insert(set.pixels.end(), pixels, pixels + kImage);
  }
  set.count += kRecords;
}

}  // namespace

std::vector<std::string> cifar10_files(bool train) {
  if (!train) return {"test_batch.bin"};
  std::vector<std::string> names;
  for (int i = 1; i <= 5; ++i) names.push_back(fmt::format("data_batch_{}.bin", i));
  return names;
}

fs::path cifar10_folder(const fs::path& folder) {
  const fs::path inside = folder / "cifar-10-batches-bin";
  std::error_code ignored;
  return fs::is_directory(inside, ignored) ? inside : folder;
}

ImageSet load_cifar10(const fs::path& folder, bool train) {
  ImageSet set;
  set.channels = 3;
  set.height = kSide;
  set.width = kSide;
  set.classes = {"airplane", "automobile", "bird",  "cat",  "deer",
                 "dog",      "frog",       "horse", "ship", "truck"};
  const fs::path where = cifar10_folder(folder);
  for (const std::string& name : cifar10_files(train)) append_file(where / name, set);
  return set;
}

}  // namespace dgc::data
