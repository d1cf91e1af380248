// JPEG files to RGB (libjpeg-turbo).
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace dgc::data {

struct Picture {
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::vector<std::uint8_t> rgb;  ///< height x width x 3
};

/// Greyscale and CMYK become RGB. With at_least > 0 the picture may come out at 1/2, 1/4 or 1/8 of
/// its size, as long as the shorter side stays at_least or longer: several times faster for large
/// pictures that are going to be shrunk anyway.
/// Throws Error(io) with the file and libjpeg's message for what is no JPEG, ends early or is
/// corrupt; limit_exceeded for more than 100 million pixels. May be called from any thread.
Picture decode_jpeg(const std::filesystem::path& file, int at_least = 0);

/// Height and width (rgb stays empty) from the header alone. Errors as decode_jpeg.
Picture read_jpeg_header(const std::filesystem::path& file);

}  // namespace dgc::data
