// Images in IDX and CIFAR-10 files: what is read, and what is said of files that are not whole.
#include <array>
#include <numeric>

#include "base/random.h"
#include "data/cifar.h"
#include "data/digest.h"
#include "data/idx.h"
#include "support/data_files.h"

namespace dgc::data {
namespace {

using test::Bytes;
using test::expect_error;
using test::idx_bytes;
using test::write_file;
using test::write_gzip;
using test::write_text;
namespace fs = std::filesystem;

constexpr const char* kImages = "train-images-idx3-ubyte";
constexpr const char* kLabels = "train-labels-idx1-ubyte";

/// Three images of 2 x 2 with pixels 0 to 11 and labels 7, 0, 9.
class Idx : public test::DataFolder {
 protected:
  static Bytes images() {
    Bytes pixels(12);
    std::iota(pixels.begin(), pixels.end(), std::uint8_t{0});
    return idx_bytes(0x803, {3, 2, 2}, pixels);
  }
  static Bytes labels() { return idx_bytes(0x801, {3}, {7, 0, 9}); }

  void expect_loads(const fs::path& where) const {
    const ImageSet set = load_idx(where, true);
    EXPECT_EQ(set.count, 3);
    EXPECT_EQ(set.channels, 1);
    EXPECT_EQ(set.height, 2);
    EXPECT_EQ(set.width, 2);
    EXPECT_EQ(set.classes.size(), 10u);
    EXPECT_EQ(set.labels, (std::vector<std::int64_t>{7, 0, 9}));
    EXPECT_EQ(set.image(2)[3], 11);
    EXPECT_EQ(set.image(1).size(), 4u);
  }
  /// Writes both files, then expects an error.
  void expect_rejected(const Bytes& image_file, const Bytes& label_file, ErrorCode code,
                       const std::vector<std::string>& says) const {
    write_file(folder() / kImages, image_file);
    write_file(folder() / kLabels, label_file);
    expect_error(code, says, [&] { load_idx(folder(), true); });
  }
};

TEST_F(Idx, ReadsPlainAndGzippedInBothSpellings) {
  write_file(folder() / "a" / kImages, images());
  write_file(folder() / "a" / kLabels, labels());
  expect_loads(folder() / "a");
  write_gzip(folder() / "b" / "train-images-idx3-ubyte.gz", images());
  write_gzip(folder() / "b" / "train-labels.idx1-ubyte.gz", labels());
  expect_loads(folder() / "b");
  write_file(folder() / "c" / "train-images.idx3-ubyte", images());
  write_gzip(folder() / "c" / "train-labels-idx1-ubyte.gz", labels());
  expect_loads(folder() / "c");
}

TEST_F(Idx, MissingFilesAreNamed) {
  expect_error(ErrorCode::io, {folder().string(), kImages, "dataset-fashion-mnist", "dgc data"},
               [&] { load_idx(folder(), true); });
  write_file(folder() / kImages, images());
  expect_error(ErrorCode::io, {folder().string(), kLabels}, [&] { load_idx(folder(), true); });
  expect_error(ErrorCode::io, {"t10k-images-idx3-ubyte"}, [&] { load_idx(folder(), false); });
  expect_error(ErrorCode::io, {"nowhere", "no such folder"},
               [&] { load_idx(folder() / "nowhere", true); });
}

TEST_F(Idx, TruncatedFilesSayHowMuchThereIs) {
  Bytes shorter = images();
  shorter.pop_back();
  expect_rejected(shorter, labels(), ErrorCode::truncated, {kImages, "11 bytes", "3 x 2 x 2 = 12"});
  expect_rejected({0, 0, 8}, labels(), ErrorCode::truncated, {kImages, "3 bytes", "16"});
  expect_rejected(images(), idx_bytes(0x801, {3}, {7, 0}), ErrorCode::truncated,
                  {kLabels, "2 bytes", "3 = 3"});
  expect_rejected({}, labels(), ErrorCode::truncated, {kImages, "0 bytes"});
}

TEST_F(Idx, TruncatedAndDamagedGzip) {
  write_file(folder() / kLabels, labels());
  Bytes noise(4000);
  Random random{1};
  for (auto& byte : noise) byte = static_cast<std::uint8_t>(random.bits());
  const fs::path path = folder() / "train-images-idx3-ubyte.gz";
  write_gzip(path, idx_bytes(0x803, {1, 1, 4000}, noise));
  const Bytes whole = test::read_file(path);
  write_file(path, Bytes(whole.begin(), whole.end() - 1000));
  expect_error(ErrorCode::truncated, {path.string(), "ends early", "bytes unpacked"},
               [&] { load_idx(folder(), true); });
  Bytes damaged = whole;
  damaged[damaged.size() / 2] ^= 0x55;
  write_file(path, damaged);
  expect_error(ErrorCode::io, {path.string(), "cannot be unpacked"},
               [&] { load_idx(folder(), true); });
}

TEST_F(Idx, HeadersThatLie) {
  expect_rejected(labels(), labels(), ErrorCode::bad_magic, {kImages, "0x00000801", "0x00000803"});
  expect_rejected(images(), images(), ErrorCode::bad_magic, {kLabels});
  // 2 GiB are promised and 12 bytes are there; 2^96 bytes would overflow.
  Bytes huge = images();
  for (const std::size_t i : {4, 8, 12}) huge[i] = 0xff;
  expect_rejected(huge, labels(), ErrorCode::limit_exceeded, {kImages, "limit"});
  expect_rejected(idx_bytes(0x803, {1u << 30, 1, 1}, {1, 2, 3}), labels(), ErrorCode::truncated,
                  {"3 bytes", "1073741824"});
  Bytes longer = images();
  longer.push_back(0);
  expect_rejected(longer, labels(), ErrorCode::trailing_bytes, {kImages, "12"});
  expect_rejected(idx_bytes(0x803, {0, 2, 2}, {}), idx_bytes(0x801, {0}, {}), ErrorCode::bad_count,
                  {kImages, "no images"});
}

TEST_F(Idx, LabelsAreChecked) {
  expect_rejected(images(), idx_bytes(0x801, {3}, {7, 10, 9}), ErrorCode::index_out_of_range,
                  {kLabels, "label 10", "record 1"});
  expect_rejected(images(), idx_bytes(0x801, {2}, {7, 0}), ErrorCode::bad_count,
                  {kImages, "3 images", "2 labels", kLabels});
}

TEST(FashionMnist, IsAsPublished) {
  const fs::path folder = "/usr/share/datasets/fashion-mnist";
  if (!fs::exists(folder)) GTEST_SKIP() << "dataset-fashion-mnist is not installed";
  const ImageSet train = load_idx(folder, true);
  EXPECT_EQ(train.count, 60000);
  EXPECT_EQ(load_idx(folder, false).count, 10000);
  EXPECT_EQ(train.height * train.width, 784);
  std::array<int, 10> counts{};
  for (const std::int64_t label : train.labels) ++counts[static_cast<std::size_t>(label)];
  for (const int count : counts) EXPECT_EQ(count, 6000);
  const double sum = std::accumulate(train.pixels.begin(), train.pixels.end(), 0.0);
  EXPECT_NEAR(sum / 255 / static_cast<double>(train.pixels.size()), 0.2860, 1e-4);
}

class Cifar : public test::DataFolder {
 protected:
  /// 10,000 records; record i has label i mod 10 and all pixels i mod 251.
  static Bytes batch() {
    Bytes bytes;
    bytes.reserve(30730000);
    for (int i = 0; i < 10000; ++i) {
      bytes.push_back(static_cast<std::uint8_t>(i % 10));
      bytes.insert(bytes.end(), 3072, static_cast<std::uint8_t>(i % 251));
    }
    return bytes;
  }
};

TEST_F(Cifar, ReadsTheTestBatch) {
  write_file(folder() / "cifar-10-batches-bin" / "test_batch.bin", batch());
  for (const fs::path& where : {folder(), folder() / "cifar-10-batches-bin"}) {
    const ImageSet set = load_cifar10(where, false);
    EXPECT_EQ(set.count, 10000);
    EXPECT_EQ(set.classes[9], "truck");
    EXPECT_EQ(set.labels[1234], 4);
    EXPECT_EQ(set.image(1234).size(), 3072u);
    EXPECT_EQ(set.image(1234)[0], 1234 % 251);
    EXPECT_EQ(set.image(1234)[3071], 1234 % 251);
  }
}

TEST_F(Cifar, WhatIsWrongIsNamed) {
  expect_error(ErrorCode::io, {folder().string(), "test_batch.bin", "cifar-10-binary.tar.gz"},
               [&] { load_cifar10(folder(), false); });
  expect_error(ErrorCode::io, {"data_batch_1.bin"}, [&] { load_cifar10(folder(), true); });
  Bytes bytes = batch();
  bytes[3073 * 77] = 10;
  write_file(folder() / "test_batch.bin", bytes);
  expect_error(ErrorCode::index_out_of_range, {"test_batch.bin", "label 10", "record 77"},
               [&] { load_cifar10(folder(), false); });
  bytes.resize(3073 * 9999 + 5);
  write_file(folder() / "test_batch.bin", bytes);
  expect_error(ErrorCode::truncated, {"test_batch.bin", "9999 whole records", "10000 records"},
               [&] { load_cifar10(folder(), false); });
  bytes.resize(3073 * 10001);
  write_file(folder() / "test_batch.bin", bytes);
  expect_error(ErrorCode::trailing_bytes, {"10001 whole records"},
               [&] { load_cifar10(folder(), false); });
}

TEST(RealCifar, HasThePublishedMean) {
  const auto folder = test::real_data("cifar10");
  if (!folder) GTEST_SKIP() << "no cifar10 in $DGC_DATA";
  const ImageSet set = load_cifar10(*folder, true);
  ASSERT_EQ(set.count, 50000);
  const std::array<double, 3> expected = {0.4914, 0.4822, 0.4465};
  for (std::size_t c = 0; c < 3; ++c) {
    double sum = 0;
    for (std::int64_t i = 0; i < set.count; ++i) {
      const auto plane = set.image(i).subspan(c * 1024, 1024);
      sum += std::accumulate(plane.begin(), plane.end(), 0.0);
    }
    EXPECT_NEAR(sum / 255 / 1024 / 50000, expected[c], 1e-4);
  }
}

class Digest : public test::DataFolder {};

TEST_F(Digest, IsThatOfMd5sum) {
  write_text(folder() / "abc", "abc");
  write_gzip(folder() / "abc.gz", {'a', 'b', 'c'});
  EXPECT_EQ(md5_of_file(folder() / "abc"), "900150983cd24fb0d6963f7d28e17f72");
  EXPECT_EQ(md5_of_contents(folder() / "abc"), "900150983cd24fb0d6963f7d28e17f72");
  EXPECT_EQ(md5_of_contents(folder() / "abc.gz"), "900150983cd24fb0d6963f7d28e17f72");
  EXPECT_NE(md5_of_file(folder() / "abc.gz"), "900150983cd24fb0d6963f7d28e17f72");
  expect_error(ErrorCode::io, {"none"}, [&] { md5_of_file(folder() / "none"); });
  expect_error(ErrorCode::io, {folder().string(), "folder"}, [&] { md5_of_contents(folder()); });
}

}  // namespace
}  // namespace dgc::data
