// Pictures: JPEG files, folders of them, and what augmentation makes of them.
#include <array>
#include <cmath>
#include <numeric>

#include "data/augment.h"
#include "data/image_folder.h"
#include "data/jpeg.h"
#include "support/data_files.h"

namespace dgc::data {
namespace {

using test::Bytes;
using test::expect_error;
using test::jpeg_bytes;
using test::plain;
using test::write_file;
using test::write_text;
namespace fs = std::filesystem;

/// The padded picture made in full, then cut.
Bytes cut_by_hand(const Bytes& in, int height, int width, int pad, int top, int left, bool mirror,
                  std::uint8_t fill) {
  Bytes out;
  const int planes = static_cast<int>(in.size()) / height / width;
  for (int c = 0; c < planes; ++c) {
    Bytes padded(static_cast<std::size_t>((height + 2 * pad) * (width + 2 * pad)), fill);
    for (int y = 0; y < height; ++y)
      for (int x = 0; x < width; ++x)
        padded[static_cast<std::size_t>((y + pad) * (width + 2 * pad) + x + pad)] =
            in[static_cast<std::size_t>((c * height + y) * width + x)];
    for (int y = 0; y < height; ++y)
      for (int x = 0; x < width; ++x)
        out.push_back(padded[static_cast<std::size_t>((y + top) * (width + 2 * pad) + left +
                                                      (mirror ? width - 1 - x : x))]);
  }
  return out;
}

TEST(PadCropFlip, GivesEveryCropAndNoOther) {
  Bytes in(2 * 4 * 5);
  std::iota(in.begin(), in.end(), std::uint8_t{1});
  std::vector<Bytes> possible;
  for (int top = 0; top <= 4; ++top)
    for (int left = 0; left <= 4; ++left)
      for (const bool mirror : {false, true})
        possible.push_back(cut_by_hand(in, 4, 5, 2, top, left, mirror, 200));
  std::vector<int> seen(possible.size());
  for (std::uint64_t i = 0; i < 5000; ++i) {
    Random random{3, i};
    Bytes out(in.size());
    pad_crop_flip(in, out, 2, 4, 5, 2, random, 200);
    const auto found = std::find(possible.begin(), possible.end(), out);
    ASSERT_NE(found, possible.end());
    ++seen[static_cast<std::size_t>(found - possible.begin())];
  }
  for (const int count : seen) EXPECT_NEAR(count, 100, 50);  // 5 standard deviations
}

TEST(PadCropFlip, WrongSizesAreRejected) {
  Bytes in(12);
  Bytes out(11);
  Random random{0};
  expect_error(ErrorCode::invalid_argument, {"12 bytes to 11"},
               [&] { pad_crop_flip(in, out, 3, 2, 2, 1, random); });
}

/// Red says the column, green the row, as parts of 250.
Picture map_of(int height, int width) {
  Picture picture{height, width, {}};
  for (int y = 0; y < height; ++y)
    for (int x = 0; x < width; ++x) {
      picture.rgb.push_back(static_cast<std::uint8_t>(250.0 * (x + 0.5) / width));
      picture.rgb.push_back(static_cast<std::uint8_t>(250.0 * (y + 0.5) / height));
      picture.rgb.push_back(77);
    }
  return picture;
}

TEST(Crops, CentreCropOfTheSameSizeChangesNothing) {
  const Picture picture = map_of(8, 8);
  Bytes out(3 * 64);
  centre_crop(picture, 8, 8, out);
  for (std::size_t i = 0; i < 64; ++i)
    for (std::size_t c = 0; c < 3; ++c) EXPECT_EQ(out[c * 64 + i], picture.rgb[3 * i + c]);
  Bytes middle(3 * 16);
  centre_crop(picture, 8, 4, middle);
  for (std::size_t y = 0; y < 4; ++y)
    for (std::size_t x = 0; x < 4; ++x)
      EXPECT_EQ(middle[y * 4 + x], picture.rgb[3 * ((y + 2) * 8 + x + 2)]);
}

TEST(Crops, CentreCropTakesTheMiddleOfTheLongerSide) {
  const Picture picture = map_of(100, 300);
  Bytes out(3 * 50 * 50);
  centre_crop(picture, 50, 50, out);
  EXPECT_NEAR(out[25 * 50], 250.0 / 3, 3);           // leftmost column: a third of the width
  EXPECT_NEAR(out[25 * 50 + 49], 250.0 * 2 / 3, 3);  // rightmost
  EXPECT_NEAR(out[2500 + 25], 0, 4);                 // top row
  EXPECT_NEAR(out[2500 + 49 * 50], 250, 4);
  EXPECT_EQ(out[5000 + 1234], 77);
}

TEST(Crops, ShrinkingAveragesInsteadOfSkipping) {
  // At a quarter of the size, interpolation between neighbours would see white alone.
  Picture stripes{64, 64, {}};
  for (int i = 0; i < 64 * 64; ++i)
    stripes.rgb.insert(stripes.rgb.end(), 3,
                       static_cast<std::uint8_t>(i % 4 == 1 || i % 4 == 2 ? 255 : 0));
  Bytes out(3 * 16 * 16);
  centre_crop(stripes, 16, 16, out);
  for (const std::uint8_t value : out) EXPECT_NEAR(value, 127.5, 30);
}

TEST(Crops, RandomCropsHaveTheRightAreasAndShapes) {
  const Picture picture = map_of(250, 250);
  int mirrored = 0;
  double smallest = 1;
  double largest = 0;
  double sum = 0;
  const int runs = 400;
  for (std::uint64_t i = 0; i < runs; ++i) {
    Random random{8, i};
    Bytes out(3 * 32 * 32);
    random_resized_crop(picture, 32, random, out);
    Random again{8, i};
    Bytes same(out.size());
    random_resized_crop(picture, 32, again, same);
    ASSERT_EQ(out, same);
    // 31 steps of the output are 31/32 of the part's side.
    const double across = (out[16 * 32 + 31] - out[16 * 32]) / 250.0 * 32 / 31;
    const double down = (out[1024 + 31 * 32] - out[1024]) / 250.0 * 32 / 31;
    mirrored += across < 0;
    const double area = std::abs(across) * down;
    smallest = std::min(smallest, area);
    largest = std::max(largest, area);
    sum += area;
    EXPECT_GT(std::abs(across) / down, 0.75 * 0.93);
    EXPECT_LT(std::abs(across) / down, 4.0 / 3 / 0.93);
    EXPECT_EQ(out[2048 + 99], 77);
  }
  EXPECT_NEAR(mirrored, runs / 2, 50);
  EXPECT_GT(smallest, 0.06);
  EXPECT_LT(smallest, 0.12);
  EXPECT_GT(largest, 0.85);
  EXPECT_LT(largest, 1.05);
  EXPECT_NEAR(sum / runs, 0.5, 0.08);  // below (0.08 + 1) / 2: large parts of odd shapes do not fit
}

TEST(Crops, ExtremeShapes) {
  for (const auto& [height, width] : {std::pair{1, 1}, {1, 500}, {500, 1}, {3, 2}}) {
    const Picture picture = map_of(height, width);
    Bytes out(3 * 24 * 24);
    for (std::uint64_t i = 0; i < 20; ++i) {
      Random random{9, i};
      random_resized_crop(picture, 24, random, out);
      EXPECT_EQ(out[2 * 576 + 5], 77);
    }
    centre_crop(picture, 32, 24, out);
    EXPECT_EQ(out[2 * 576 + 575], 77);
  }
  Bytes out(3 * 24 * 24);
  Random random{0};
  expect_error(ErrorCode::invalid_argument, {"24"},
               [&] { centre_crop(map_of(9, 9), 23, 24, out); });
  expect_error(ErrorCode::invalid_argument, {"3 x 25 x 25"},
               [&] { random_resized_crop(map_of(9, 9), 25, random, out); });
  expect_error(ErrorCode::invalid_argument, {"0 x 0"}, [&] { centre_crop({}, 24, 24, out); });
}

class Jpeg : public test::DataFolder {
 protected:
  fs::path write(const char* name, const Bytes& bytes) const {
    write_file(folder() / name, bytes);
    return folder() / name;
  }
  static void expect_color(const Picture& picture, const std::array<int, 3>& color) {
    ASSERT_EQ(std::ssize(picture.rgb), picture.height * picture.width * 3);
    for (std::size_t i = 0; i < picture.rgb.size(); ++i)
      ASSERT_NEAR(picture.rgb[i], color[i % 3], 4) << i;
  }
};

TEST_F(Jpeg, EveryColorSpaceBecomesRgb) {
  for (const bool progressive : {false, true}) {
    const Picture rgb = decode_jpeg(
        write("rgb.jpg", jpeg_bytes(20, 30, JCS_RGB, plain(20, 30, {200, 100, 50}), progressive)));
    EXPECT_EQ(rgb.height, 20);
    EXPECT_EQ(rgb.width, 30);
    expect_color(rgb, {200, 100, 50});
    expect_color(decode_jpeg(write(
                     "grey.jpg", jpeg_bytes(9, 7, JCS_GRAYSCALE, plain(9, 7, {90}), progressive))),
                 {90, 90, 90});
  }
  // libjpeg marks CMYK files as Adobe's, which are inverted: 255 is no ink.
  expect_color(decode_jpeg(write("cmyk.jpg",
                                 jpeg_bytes(16, 16, JCS_CMYK, plain(16, 16, {255, 128, 0, 200})))),
               {200, 100, 0});
}

TEST_F(Jpeg, PicturesKeepTheirPlace) {
  Bytes pixels = plain(32, 48, {0, 0, 0});
  for (std::size_t y = 0; y < 16; ++y)
    for (std::size_t x = 0; x < 16; ++x) pixels[(y * 48 + x) * 3] = 255;  // red, top left
  const Picture picture = decode_jpeg(write("a.jpg", jpeg_bytes(32, 48, JCS_RGB, pixels)));
  EXPECT_GT(picture.rgb[(4 * 48 + 4) * 3], 240);
  EXPECT_LT(picture.rgb[(4 * 48 + 40) * 3], 15);
  EXPECT_LT(picture.rgb[(28 * 48 + 4) * 3], 15);
}

TEST_F(Jpeg, IsScaledDownAsFarAsAllowed) {
  const fs::path file =
      write("a.jpg", jpeg_bytes(100, 200, JCS_RGB, plain(100, 200, {10, 20, 30})));
  const auto height = [&](int at_least) { return decode_jpeg(file, at_least).height; };
  EXPECT_EQ(height(0), 100);
  EXPECT_EQ(height(101), 100);
  EXPECT_EQ(height(51), 100);
  EXPECT_EQ(height(50), 50);
  EXPECT_EQ(height(26), 50);
  EXPECT_EQ(height(25), 25);
  EXPECT_EQ(height(1), 13);
  EXPECT_EQ(decode_jpeg(file, 25).width, 50);
  expect_color(decode_jpeg(file, 25), {10, 20, 30});
  EXPECT_EQ(read_jpeg_header(file).width, 200);
}

TEST_F(Jpeg, UnreadableFilesAreNamed) {
  Bytes noise = plain(64, 64, {0});
  Random random{4};
  for (auto& value : noise) value = static_cast<std::uint8_t>(random.bits());
  for (const bool progressive : {false, true}) {
    const Bytes whole = jpeg_bytes(64, 64, JCS_GRAYSCALE, noise, progressive);
    const fs::path cut = write("cut.jpg", Bytes(whole.begin(), whole.end() - 500));
    expect_error(ErrorCode::io, {cut.string(), "unreadable JPEG", "remature end"},
                 [&] { decode_jpeg(cut); });
    Bytes holes = whole;
    for (std::size_t i = whole.size() / 2; i < whole.size() / 2 + 40; ++i) holes[i] = 0xff;
    EXPECT_THROW(decode_jpeg(write("holes.jpg", holes)), Error);
  }
  const fs::path png = write("png.jpg", {0x89, 'P', 'N', 'G', 13, 10, 26, 10, 0, 0});
  expect_error(ErrorCode::io, {png.string(), "Not a JPEG file"}, [&] { decode_jpeg(png); });
  expect_error(ErrorCode::io, {png.string(), "Not a JPEG file"}, [&] { read_jpeg_header(png); });
  expect_error(ErrorCode::io, {"empty.jpg", "empty"}, [&] { decode_jpeg(write("empty.jpg", {})); });
  expect_error(ErrorCode::io, {"none.jpg", "cannot open"},
               [&] { decode_jpeg(folder() / "none.jpg"); });
}

TEST_F(Jpeg, HugePicturesAreRefused) {
  Bytes bytes = jpeg_bytes(16, 16, JCS_GRAYSCALE, plain(16, 16, {1}));
  for (std::size_t i = 0; i + 9 < bytes.size(); ++i) {
    if (bytes[i] != 0xff || bytes[i + 1] != 0xc0) continue;  // start of frame: height, width
    bytes[i + 5] = bytes[i + 7] = 0xea;
  }
  expect_error(ErrorCode::limit_exceeded, {"huge.jpg", "59920 x 59920"},
               [&] { decode_jpeg(write("huge.jpg", bytes)); });
}

class Folders : public test::DataFolder {
 protected:
  void add(const std::string& name) const {
    write_file(folder() / name, jpeg_bytes(4, 4, JCS_GRAYSCALE, plain(4, 4, {5})));
  }
};

TEST_F(Folders, AreListedInOrder) {
  for (const char* const name : {"b/2.JPEG", "b/1.jpg", "a/x.Jpg", "c/images/y.jpeg"}) add(name);
  add("b/.hidden.jpg");
  write_text(folder() / "b" / "boxes.txt", "no image");
  const ImageFolder images = scan_image_folder(folder());
  EXPECT_EQ(images.classes, (std::vector<std::string>{"a", "b", "c"}));
  ASSERT_EQ(images.entries.size(), 4u);
  EXPECT_EQ(images.entries[0].file, folder() / "a" / "x.Jpg");
  EXPECT_EQ(images.entries[1].file, folder() / "b" / "1.jpg");
  EXPECT_EQ(images.entries[2].label, 1);
  EXPECT_EQ(images.entries[3].file, folder() / "c" / "images" / "y.jpeg");
  EXPECT_EQ(images.entries[3].label, 2);
}

TEST_F(Folders, WhatIsMissingIsNamed) {
  expect_error(ErrorCode::io, {"nowhere", "no such folder"},
               [&] { scan_image_folder(folder() / "nowhere"); });
  expect_error(ErrorCode::io, {folder().string(), "no folders of classes"},
               [&] { scan_image_folder(folder()); });
  add("loose.jpg");
  expect_error(ErrorCode::io, {"1 images, but no folders"}, [&] { scan_image_folder(folder()); });
  add("dogs/1.jpg");
  fs::create_directory(folder() / "cats");
  expect_error(ErrorCode::io, {"class cats has no JPEGs"}, [&] { scan_image_folder(folder()); });
  expect_error(ErrorCode::io, {"no folder train"}, [&] { scan_image_folders(folder()); });
}

TEST_F(Folders, ValidationHasTheNumbersOfTrain) {
  for (const char* const name : {"train/a/1.jpg", "train/b/1.jpg", "train/c/1.jpg", "val/c/1.jpg"})
    add(name);
  const ImageFolders images = scan_image_folders(folder());
  EXPECT_EQ(images.valid.classes, images.train.classes);
  EXPECT_EQ(images.valid.entries.at(0).label, 2);
  add("val/d/1.jpg");
  expect_error(ErrorCode::io, {"val", "class d is not in train"},
               [&] { scan_image_folders(folder()); });
}

TEST_F(Folders, TinyImageNetsValidationIsReadFromItsTable) {
  add("val/images/val_0.JPEG");
  add("val/images/val_1.JPEG");
  const fs::path table = folder() / "val" / "val_annotations.txt";
  write_text(table, "val_0.JPEG\tn02\t0\t0\t9\t9\nval_1.JPEG\tn01\t0\t0\t9\t9\n");
  const ImageFolder images = scan_image_folder(folder() / "val");
  EXPECT_EQ(images.classes, (std::vector<std::string>{"n01", "n02"}));
  EXPECT_EQ(images.entries[0].file.filename(), "val_1.JPEG");
  EXPECT_EQ(images.entries[1].label, 1);
  write_text(table, "val_0.JPEG\tn02\nval_7.JPEG\tn01\n");
  expect_error(ErrorCode::io, {"val_annotations.txt", "line 2", "val_7.JPEG"},
               [&] { scan_image_folder(folder() / "val"); });
}

TEST(RealImageFolder, EveryPictureDecodes) {
  const auto folder = test::real_data("tiny-imagenet-10");
  if (!folder) GTEST_SKIP() << "no tiny-imagenet-10 in $DGC_DATA";
  const ImageFolders images = scan_image_folders(*folder);
  EXPECT_EQ(images.train.classes.size(), 10u);
  EXPECT_EQ(images.train.entries.size(), 5000u);
  ASSERT_EQ(images.valid.entries.size(), 500u);
  for (const auto& entry : images.valid.entries) {
    const Picture picture = decode_jpeg(entry.file);
    ASSERT_EQ(picture.rgb.size(), 64u * 64 * 3) << entry.file;
  }
}

}  // namespace
}  // namespace dgc::data
