#include "data/audio.h"

#include <fmt/format.h>
#include <sndfile.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <fstream>
#include <memory>

#include "dgc/error.h"

namespace dgc::data {
namespace {

constexpr const char* kOperation = "read audio";
// Files of floating-point samples may exceed 1, but not by this much; the spectrogram's squares
// stay far below what a float holds.
constexpr float kLoudest = 1e6f;

[[noreturn]] void fail_truncated(const std::filesystem::path& file, std::string problem) {
  throw Error(ErrorCode::truncated, kOperation, file.string(), std::move(problem),
              "fetch or convert the file again");
}

/// libsndfile takes a WAV file that ends early for a shorter one. Its header knows better.
void check_riff_length(const std::filesystem::path& file) {
  std::array<unsigned char, 8> head{};
  std::ifstream stream(file, std::ios::binary | std::ios::ate);
  const auto size = static_cast<std::int64_t>(stream.tellg());
  stream.seekg(0);
  if (!stream.read(reinterpret_cast<char*>(head.data()), head.size())) return;
  if (std::memcmp(head.data(), "RIFF", 4) != 0) return;
  std::int64_t stated = 0;
  for (std::size_t i = 4; i-- > 0;) stated = stated << 8 | head[4 + i];
  constexpr std::int64_t kUnknown = 0xffffffff;  // written to a pipe
  if (stated != kUnknown && stated + 8 > size) {
    fail_truncated(file, fmt::format("the file ends after {} of {} bytes", size, stated + 8));
  }
}

struct Close {
  void operator()(SNDFILE* handle) const { sf_close(handle); }
};

struct Opened {
  std::unique_ptr<SNDFILE, Close> handle;
  SF_INFO info{};
};

Opened open(const std::filesystem::path& file) {
  Opened opened;
  if (file.extension() == ".raw") {
    opened.info.format = SF_FORMAT_RAW | SF_FORMAT_PCM_16 | SF_ENDIAN_BIG;
    opened.info.channels = 1;
    opened.info.samplerate = 16000;
  }
  opened.handle.reset(sf_open(file.c_str(), SFM_READ, &opened.info));
  if (!opened.handle) {
    std::error_code ignored;
    if (std::filesystem::file_size(file, ignored) == 0) {
      fail_truncated(file, "the file is empty");
    }
    throw Error(ErrorCode::io, kOperation, file.string(), sf_strerror(nullptr));
  }
  check_riff_length(file);
  if (opened.info.frames <= 0) fail_truncated(file, "the file has no samples");
  if (opened.info.samplerate <= 0 || opened.info.channels <= 0) {
    throw Error(ErrorCode::io, kOperation, file.string(),
                fmt::format("{} Hz, {} channels", opened.info.samplerate, opened.info.channels));
  }
  return opened;
}

[[noreturn]] void fail_early_end(const std::filesystem::path& file, const Opened& opened,
                                 std::int64_t read) {
  const bool has_message = sf_error(opened.handle.get()) != SF_ERR_NO_ERROR;
  const std::string read_part =
      read >= 0 ? fmt::format("{} of {} samples can be read", read, opened.info.frames)
                : fmt::format("the last of {} samples cannot be read", opened.info.frames);
  fail_truncated(file, has_message
                           ? fmt::format("{}: {}", read_part, sf_strerror(opened.handle.get()))
                           : read_part);
}

}  // namespace

Audio read_audio(const std::filesystem::path& file) {
  const Opened opened = open(file);
  const auto channels = static_cast<std::size_t>(opened.info.channels);
  // A damaged header may promise any number of samples: memory follows what is really there.
  constexpr std::size_t kBlock = 65536;
  std::vector<float> block(kBlock * channels);
  Audio audio;
  audio.rate = opened.info.samplerate;
  for (;;) {
    const sf_count_t count = sf_readf_float(opened.handle.get(), block.data(), kBlock);
    if (count <= 0) break;
    for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
      float sum = 0;
      for (std::size_t c = 0; c < channels; ++c) sum += block[i * channels + c];
      if (!(std::abs(sum) <= kLoudest)) {  // or is no number
        throw Error(ErrorCode::io, kOperation, file.string(),
                    fmt::format("sample {} is {}", audio.samples.size(), sum));
      }
      audio.samples.push_back(sum / static_cast<float>(channels));
    }
  }
  const auto read = static_cast<std::int64_t>(audio.samples.size());
  if (read < opened.info.frames) fail_early_end(file, opened, read);
  return audio;
}

AudioInfo audio_info(const std::filesystem::path& file) {
  const Opened opened = open(file);
  std::vector<float> sample(static_cast<std::size_t>(opened.info.channels));
  if (sf_seek(opened.handle.get(), opened.info.frames - 1, SEEK_SET) < 0 ||
      sf_readf_float(opened.handle.get(), sample.data(), 1) != 1) {
    fail_early_end(file, opened, -1);
  }
  return {opened.info.samplerate, opened.info.frames};
}

}  // namespace dgc::data
