// Small data files for tests, whole and damaged, in a folder that is removed afterwards.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>
#include <zlib.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <vector>
// After stdio.h, which it does not include.
#include <jpeglib.h>

#include "base/temporary_folder.h"
#include "dgc/error.h"

namespace dgc::test {

using Bytes = std::vector<std::uint8_t>;
namespace fs = std::filesystem;

class DataFolder : public testing::Test {
 protected:
  const fs::path& folder() const { return folder_.path(); }

 private:
  const TemporaryFolder folder_;
};

inline void write_file(const fs::path& path, const Bytes& bytes) {
  fs::create_directories(path.parent_path());
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()), std::ssize(bytes));
  ASSERT_TRUE(file.good()) << path;
}

inline void write_text(const fs::path& path, const std::string& text) {
  write_file(path, Bytes(text.begin(), text.end()));
}

inline Bytes read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void write_gzip(const fs::path& path, const Bytes& bytes) {
  fs::create_directories(path.parent_path());
  const gzFile file = gzopen(path.c_str(), "wb");
  ASSERT_EQ(gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size())),
            static_cast<int>(bytes.size()));
  ASSERT_EQ(gzclose(file), Z_OK);
}

/// An IDX file: the magic number, the sizes, the bytes as given.
inline Bytes idx_bytes(std::uint32_t magic, const std::vector<std::uint32_t>& sizes,
                       const Bytes& contents) {
  Bytes bytes;
  const auto put = [&](std::uint32_t value) {
    for (int shift = 24; shift >= 0; shift -= 8)
      bytes.push_back(static_cast<std::uint8_t>(value >> shift));
  };
  put(magic);
  for (const std::uint32_t size : sizes) put(size);
  bytes.insert(bytes.end(), contents.begin(), contents.end());
  return bytes;
}

/// `color`: JCS_RGB, JCS_GRAYSCALE or JCS_CMYK, with 3, 1 or 4 bytes a pixel.
inline Bytes jpeg_bytes(int height, int width, J_COLOR_SPACE color, const Bytes& pixels,
                        bool progressive = false) {
  jpeg_compress_struct info{};
  jpeg_error_mgr errors{};
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* buffer = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &buffer, &size);
  info.image_width = static_cast<unsigned>(width);
  info.image_height = static_cast<unsigned>(height);
  info.input_components = color == JCS_RGB ? 3 : color == JCS_CMYK ? 4 : 1;
  info.in_color_space = color;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, 95, TRUE);
  if (progressive) jpeg_simple_progression(&info);
  jpeg_start_compress(&info, TRUE);
  const auto stride =
      static_cast<std::size_t>(width) * static_cast<std::size_t>(info.input_components);
  while (info.next_scanline < info.image_height) {
    JSAMPROW row = const_cast<JSAMPROW>(pixels.data() + info.next_scanline * stride);
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  Bytes bytes(buffer, buffer + size);
  jpeg_destroy_compress(&info);
  std::free(buffer);
  return bytes;
}

/// One colour, or grey with one byte.
inline Bytes plain(int height, int width, const Bytes& color) {
  Bytes pixels;
  for (int i = 0; i < height * width; ++i) pixels.insert(pixels.end(), color.begin(), color.end());
  return pixels;
}

/// The Error that `work` throws; fails the test when it throws none.
inline Error error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "no error was thrown";
  return Error(ErrorCode::ok, "", "", "");
}

/// That the error has this code and says each of these.
inline void expect_error(ErrorCode code, const std::vector<std::string>& says,
                         const std::function<void()>& work) {
  const Error error = error_of(work);
  EXPECT_EQ(error_name(error.code()), error_name(code)) << error.what();
  for (const std::string& text : says)
    EXPECT_NE(std::string(error.what()).find(text), std::string::npos)
        << "'" << text << "' is not in: " << error.what();
}

/// $DGC_DATA/name, where that is.
inline std::optional<fs::path> real_data(const std::string& name) {
  const char* const root = std::getenv("DGC_DATA");
  if (root == nullptr || !fs::exists(fs::path(root) / name)) return std::nullopt;
  return fs::path(root) / name;
}

}  // namespace dgc::test
