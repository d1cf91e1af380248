#include "data/idx.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <span>

#include "data/unpack.h"
#include "dgc/error.h"

namespace dgc::data {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kLimit = std::uint64_t{1} << 31;  // bytes of one file, unpacked
constexpr std::size_t kChunk = std::size_t{1} << 20;
constexpr int kClasses = 10;

std::uint32_t big_endian(const std::uint8_t* bytes) {
  return std::uint32_t{bytes[0]} << 24 | std::uint32_t{bytes[1]} << 16 |
         std::uint32_t{bytes[2]} << 8 | bytes[3];
}

struct Array {
  std::vector<std::uint32_t> dimensions;
  std::vector<std::uint8_t> bytes;
};

/// The magic number says the type (8: unsigned bytes) and the number of dimensions; a big-endian
/// 32-bit size for each dimension follows.
std::vector<std::uint32_t> read_header(UnpackedFile& file, std::size_t dimensions) {
  std::array<std::uint8_t, 16> header{};
  const std::size_t size = 4 + 4 * dimensions;
  const std::size_t got = file.read(std::span(header).first(size));
  const std::uint32_t magic = big_endian(header.data());
  const auto expected = static_cast<std::uint32_t>(0x800 + dimensions);
  if (got >= 4 && magic != expected) {
    throw Error(ErrorCode::bad_magic, "read", file.path().string(),
                fmt::format("begins with 0x{:08x}; an IDX file of {} begins with 0x{:08x}", magic,
                            dimensions == 1 ? "labels" : "images", expected));
  }
  if (got < size) {
    throw Error(ErrorCode::truncated, "read", file.path().string(),
                fmt::format("{} bytes, shorter than the header of {}", got, size));
  }
  std::vector<std::uint32_t> sizes;
  for (std::size_t i = 1; i <= dimensions; ++i) sizes.push_back(big_endian(header.data() + 4 * i));
  return sizes;
}

std::string product(const std::vector<std::uint32_t>& dimensions) {
  return fmt::format("{}", fmt::join(dimensions, " x "));
}

Array read_array(const fs::path& path, std::size_t dimensions) {
  UnpackedFile file(path);
  Array array{read_header(file, dimensions), {}};
  std::uint64_t expected = 1;
  for (const std::uint32_t size : array.dimensions) {
    expected *= size;  // below 2^63: the first factor is at most the limit, and is checked
    if (expected > kLimit) {
      throw Error(ErrorCode::limit_exceeded, "read", path.string(),
                  fmt::format("the header promises {} bytes; the limit is {}",
                              product(array.dimensions), kLimit));
    }
  }
  // Grows with what is really there, so that a header's lie costs no memory.
  while (array.bytes.size() < expected) {
    const std::size_t before = array.bytes.size();
    const auto wanted =
        static_cast<std::size_t>(std::min<std::uint64_t>(kChunk, expected - before));
    array.bytes.resize(before + wanted);
    const std::size_t got = file.read(std::span(array.bytes).subspan(before));
    if (got < wanted) {
      throw Error(ErrorCode::truncated, "read", path.string(),
                  fmt::format("{} bytes after the header, which promises {} = {}", before + got,
                              product(array.dimensions), expected),
                  "the file is not complete; get it again");
    }
  }
  std::array<std::uint8_t, 1> more{};
  if (file.read(more) != 0) {
    throw Error(ErrorCode::trailing_bytes, "read", path.string(),
                fmt::format("more bytes follow the {} = {} that the header promises",
                            product(array.dimensions), expected));
  }
  return array;
}

fs::path require_idx(const fs::path& folder, const std::string& name) {
  if (auto found = find_idx(folder, name)) return *found;
  throw Error(ErrorCode::io, "read", folder.string(),
              fs::is_directory(folder) ? fmt::format("has no {} and no {}.gz", name, name)
                                       : fmt::format("no such folder; looked for {} in it", name),
              "the Debian package dataset-fashion-mnist has such files in "
              "/usr/share/datasets/fashion-mnist; `dgc data` lists more");
}

}  // namespace

IdxNames idx_names(bool train) {
  const std::string half = train ? "train" : "t10k";
  return {half + "-images-idx3-ubyte", half + "-labels-idx1-ubyte"};
}

std::optional<fs::path> find_idx(const fs::path& folder, const std::string& name) {
  std::string dotted = name;
  dotted[dotted.find("-idx")] = '.';
  for (const std::string& spelling : {name, name + ".gz", dotted, dotted + ".gz"}) {
    std::error_code ignored;
    if (fs::is_regular_file(folder / spelling, ignored)) return folder / spelling;
  }
  return std::nullopt;
}

ImageSet load_idx(const fs::path& folder, bool train) {
  const IdxNames names = idx_names(train);
  const fs::path image_file = require_idx(folder, names.images);
  const fs::path label_file = require_idx(folder, names.labels);
  const Array labels = read_array(label_file, 1);
  Array images = read_array(image_file, 3);
  if (images.dimensions[0] != labels.dimensions[0]) {
    throw Error(ErrorCode::bad_count, "read", image_file.string(),
                fmt::format("{} images, but {} labels in {}", images.dimensions[0],
                            labels.dimensions[0], label_file.filename().string()),
                "the two files are not of the same set");
  }
  if (images.bytes.empty())
    throw Error(ErrorCode::bad_count, "read", image_file.string(), "holds no images");

  ImageSet set;
  set.count = images.dimensions[0];
  set.channels = 1;
  set.height = images.dimensions[1];
  set.width = images.dimensions[2];
  for (int i = 0; i < kClasses; ++i) set.classes.push_back(std::to_string(i));
  set.pixels = std::move(images.bytes);
  set.labels.assign(labels.bytes.begin(), labels.bytes.end());
  const auto wrong = std::find_if(set.labels.begin(), set.labels.end(),
                                  [](std::int64_t label) { return label >= kClasses; });
  if (wrong != set.labels.end()) {
    throw Error(ErrorCode::index_out_of_range, "read", label_file.string(),
                fmt::format("label {} of record {} (from 0) is not below {}", *wrong,
                            wrong - set.labels.begin(), kClasses));
  }
  return set;
}

}  // namespace dgc::data
