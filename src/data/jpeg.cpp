// JPEG to RGB with libjpeg-turbo.
//
// A picture that is going to be shrunk is decoded smaller: libjpeg leaves out the high frequencies
// of each 8 x 8 block, and so gives 1/2, 1/4 or 1/8 of the size at a fraction of the time. The
// smallest is taken whose shorter side is still long enough. Sizes, scans and memory are bounded,
// because the files come from anywhere; what libjpeg would fill up with grey is an error.
#include "data/jpeg.h"

// jpeglib.h wants the types of stdio.h, and does not include it.
#include <cstdio>
// clang-format off
#include <jpeglib.h>
#include <jerror.h>
// clang-format on

#include <fmt/format.h>

#include <algorithm>
#include <csetjmp>
#include <string>

#include "base/file.h"
#include "dgc/error.h"

namespace dgc::data {
namespace {

// A picture of this size takes 300 MB; the largest of ImageNet has 61 million pixels.
constexpr std::int64_t kMostPixels = 100'000'000;
// Each scan of a progressive file costs a pass over the whole picture, and a kilobyte can hold
// many.
constexpr int kMostScans = 500;
// Coefficients of a progressive picture of the largest size, with some room.
constexpr long kMostMemory = 1'000'000'000;

/// libjpeg leaves by longjmp, past C++ frames: between setjmp and the last call of libjpeg no
/// object with a destructor is made.
struct Decoder {
  Decoder() = default;
  ~Decoder() { jpeg_destroy_decompress(&info); }  // also of one that was never created
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  jpeg_decompress_struct info{};
  jpeg_error_mgr errors{};
  jpeg_progress_mgr progress{};
  std::jmp_buf escape{};
  char message[JMSG_LENGTH_MAX] = {};
};

[[noreturn]] void leave(j_common_ptr info) {
  auto* const decoder = static_cast<Decoder*>(info->client_data);
  decoder->errors.format_message(info, decoder->message);
  std::longjmp(decoder->escape, 1);  // NOLINT(cert-err52-cpp)
}

/// libjpeg calls corrupt data a warning and fills up with grey. Here it is an error, except for
/// what leaves the picture whole.
void on_message(j_common_ptr info, int level) {
  if (level >= 0) return;
  switch (info->err->msg_code) {
    case JWRN_EXTRANEOUS_DATA:
    case JWRN_ADOBE_XFORM:
    case JWRN_JFIF_MAJOR:
      return;
    default:
      leave(info);
  }
}

void on_progress(j_common_ptr info) {
  const auto* const decoder = reinterpret_cast<j_decompress_ptr>(info);
  if (decoder->input_scan_number <= kMostScans) return;
  auto* const own = static_cast<Decoder*>(info->client_data);
  std::snprintf(own->message, sizeof own->message, "more than %d scans", kMostScans);
  std::longjmp(own->escape, 1);  // NOLINT(cert-err52-cpp)
}

/// Reads the header; 0, or 1 with a message. Everything that can longjmp is called below setjmp
/// frames that hold only plain data.
int read_header(Decoder& decoder, const unsigned char* bytes, unsigned long size) {
  if (setjmp(decoder.escape) != 0) return 1;
  jpeg_create_decompress(&decoder.info);
  decoder.info.mem->max_memory_to_use = kMostMemory;
  decoder.info.progress = &decoder.progress;
  jpeg_mem_src(&decoder.info, bytes, size);
  jpeg_read_header(&decoder.info, TRUE);
  return 0;
}

/// Chooses the output; 0, or 1 with a message.
int start(Decoder& decoder, int at_least) {
  if (setjmp(decoder.escape) != 0) return 1;
  jpeg_decompress_struct& info = decoder.info;
  info.out_color_space =
      info.jpeg_color_space == JCS_CMYK || info.jpeg_color_space == JCS_YCCK ? JCS_CMYK : JCS_RGB;
  // The fast integer transform is visibly worse, and hardly faster with SIMD.
  info.dct_method = JDCT_ISLOW;
  const unsigned shorter = std::min(info.image_width, info.image_height);
  info.scale_num = 1;
  info.scale_denom = 1;
  for (const unsigned denominator : {2u, 4u, 8u}) {
    // libjpeg rounds up.
    if (at_least > 0 &&
        (shorter + denominator - 1) / denominator >= static_cast<unsigned>(at_least))
      info.scale_denom = denominator;
  }
  jpeg_start_decompress(&info);
  return 0;
}

/// Adobe's programs store inverted CMYK, and are the only ones that write such files.
void cmyk_to_rgb(unsigned char* row, std::int64_t width, bool inverted) {
  for (std::int64_t x = 0; x < width; ++x) {
    const unsigned char* const from = row + 4 * x;
    const unsigned black = inverted ? from[3] : 255u - from[3];
    for (int c = 0; c < 3; ++c) {
      const unsigned ink = inverted ? from[c] : 255u - from[c];
      row[3 * x + c] = static_cast<unsigned char>((ink * black + 127) / 255);
    }
  }
}

int read_rows(Decoder& decoder, unsigned char* rgb, unsigned char* line) {
  if (setjmp(decoder.escape) != 0) return 1;
  jpeg_decompress_struct& info = decoder.info;
  const bool cmyk = info.out_color_space == JCS_CMYK;
  const std::size_t stride = std::size_t{info.output_width} * 3;
  while (info.output_scanline < info.output_height) {
    unsigned char* const target = rgb + info.output_scanline * stride;
    JSAMPROW row = cmyk ? line : target;
    jpeg_read_scanlines(&info, &row, 1);
    if (cmyk) {
      cmyk_to_rgb(line, info.output_width, info.saw_Adobe_marker != 0);
      std::copy_n(line, stride, target);
    }
  }
  jpeg_finish_decompress(&info);
  return 0;
}

/// One file being decoded.
class Source {
 public:
  explicit Source(const std::filesystem::path& path) : path_(path), file_(path) {
    decoder_.info.err = jpeg_std_error(&decoder_.errors);
    decoder_.errors.error_exit = leave;
    decoder_.errors.emit_message = on_message;
    decoder_.info.client_data = &decoder_;
    decoder_.progress.progress_monitor = on_progress;
    const auto contents = file_.contents();
    if (contents.empty()) throw Error(ErrorCode::io, "decode", path.string(), "is empty");
    require(read_header(decoder_, reinterpret_cast<const unsigned char*>(contents.data()),
                        contents.size()));
    const std::int64_t pixels =
        std::int64_t{decoder_.info.image_width} * decoder_.info.image_height;
    if (pixels > kMostPixels) {
      fail(ErrorCode::limit_exceeded,
           fmt::format("{} x {} pixels; the limit is {} million", decoder_.info.image_width,
                       decoder_.info.image_height, kMostPixels / 1'000'000));
    }
  }

  Picture header() const { return {decoder_.info.image_height, decoder_.info.image_width, {}}; }

  Picture decode(int at_least) {
    require(start(decoder_, at_least));
    Picture picture{decoder_.info.output_height, decoder_.info.output_width, {}};
    picture.rgb.resize(static_cast<std::size_t>(picture.height * picture.width * 3));
    std::vector<unsigned char> line(static_cast<std::size_t>(picture.width) * 4);
    require(read_rows(decoder_, picture.rgb.data(), line.data()));
    return picture;
  }

 private:
  void require(int failed) {
    if (failed != 0) fail(ErrorCode::io, fmt::format("unreadable JPEG: {}", decoder_.message));
  }
  [[noreturn]] void fail(ErrorCode code, const std::string& problem) {
    throw Error(code, "decode", path_.string(), problem);
  }

  std::filesystem::path path_;
  MappedFile file_;
  Decoder decoder_;
};

}  // namespace

Picture decode_jpeg(const std::filesystem::path& file, int at_least) {
  return Source(file).decode(at_least);
}

Picture read_jpeg_header(const std::filesystem::path& file) { return Source(file).header(); }

}  // namespace dgc::data
