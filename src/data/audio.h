// Audio files: WAV, FLAC and whatever else libsndfile reads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace dgc::data {

/// One channel; the channels of the file are averaged.
struct Audio {
  int rate = 0;                ///< samples a second
  std::vector<float> samples;  ///< full scale is -1 … 1
};

/// What the header of a file says.
struct AudioInfo {
  int rate = 0;
  std::int64_t samples = 0;  ///< per channel
  double seconds() const { return static_cast<double>(samples) / rate; }
};

/// Files that end in ".raw" have no header: they are read as the AN4 corpus has them, 16 bits
/// big-endian, one channel, 16 kHz.
/// Errors, with the file and libsndfile's message: io for a file that is missing, not audio, or has
/// a sample that is not a number or beyond a million times full scale; truncated for one that is
/// empty or ends before its header says.
Audio read_audio(const std::filesystem::path& file);

/// Reads the header and the last sample only, so that a truncated file is noticed. Errors as
/// read_audio.
AudioInfo audio_info(const std::filesystem::path& file);

}  // namespace dgc::data
