#include "data/unpack.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "dgc/error.h"

namespace dgc::data {
namespace {

// Per call of gzread, which counts in int; also the size of zlib's own buffer.
constexpr std::size_t kChunk = std::size_t{1} << 18;

}  // namespace

UnpackedFile::UnpackedFile(std::filesystem::path path) : path_(std::move(path)) {
  // zlib opens a folder without complaint and fails only when reading it.
  if (std::error_code ignored; std::filesystem::is_directory(path_, ignored))
    throw Error(ErrorCode::io, "read", path_.string(), "is a folder, not a file");
  errno = 0;
  file_ = gzopen(path_.c_str(), "rb");
  if (file_ == nullptr) {
    throw Error(ErrorCode::io, "read", path_.string(),
                fmt::format("cannot open: {}", errno != 0 ? std::strerror(errno) : "no memory"));
  }
  gzbuffer(file_, kChunk);
}

UnpackedFile::~UnpackedFile() { gzclose_r(file_); }

std::size_t UnpackedFile::read(std::span<std::uint8_t> bytes) {
  std::size_t filled = 0;
  while (filled < bytes.size()) {
    const std::size_t wanted = std::min(bytes.size() - filled, kChunk);
    const int got = gzread(file_, bytes.data() + filled, static_cast<unsigned>(wanted));
    int code = Z_OK;
    const char* const message = gzerror(file_, &code);
    if (got < 0 || code == Z_BUF_ERROR) {
      const std::uint64_t good = done_ + filled + static_cast<std::uint64_t>(std::max(got, 0));
      if (code == Z_BUF_ERROR) {
        throw Error(ErrorCode::truncated, "read", path_.string(),
                    fmt::format("the gzipped file ends early, after {} bytes unpacked", good),
                    "the download was not complete; get the file again");
      }
      throw Error(ErrorCode::io, "read", path_.string(),
                  fmt::format("cannot be unpacked after {} bytes: {}", good,
                              code == Z_ERRNO ? std::strerror(errno) : message),
                  "the file is damaged; get it again");
    }
    if (got == 0) break;
    filled += static_cast<std::size_t>(got);
  }
  done_ += filled;
  return filled;
}

}  // namespace dgc::data
