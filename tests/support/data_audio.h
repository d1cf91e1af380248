// Audio files for tests, and a spectrogram by its definition.
#pragma once

#include <sndfile.h>

#include <cmath>
#include <complex>
#include <cstddef>
#include <filesystem>
#include <numbers>
#include <random>
#include <stdexcept>
#include <vector>

#include "data/audio.h"

namespace dgc::test {

inline constexpr int kFlac = SF_FORMAT_FLAC | SF_FORMAT_PCM_16;
inline constexpr int kRaw = SF_FORMAT_RAW | SF_FORMAT_PCM_16 | SF_ENDIAN_BIG;

/// Writes interleaved samples.
inline std::filesystem::path write_audio(const std::filesystem::path& file,
                                         const std::vector<float>& samples, int rate = 16000,
                                         int channels = 1,
                                         int format = SF_FORMAT_WAV | SF_FORMAT_PCM_16) {
  std::filesystem::create_directories(file.parent_path());
  SF_INFO info{};
  info.samplerate = rate;
  info.channels = channels;
  info.format = format;
  SNDFILE* const handle = sf_open(file.c_str(), SFM_WRITE, &info);
  if (handle == nullptr) throw std::runtime_error(sf_strerror(nullptr));
  // libsndfile writes 1.0 as 32,767 but reads 32,768 as 1.0.
  sf_command(handle, SFC_SET_NORM_FLOAT, nullptr, SF_FALSE);
  const bool is_float = (format & SF_FORMAT_SUBMASK) == SF_FORMAT_FLOAT;
  std::vector<float> values = samples;
  for (float& x : values) x *= is_float ? 1.0f : 32768.0f;
  sf_write_float(handle, values.data(), static_cast<sf_count_t>(values.size()));
  sf_close(handle);
  return file;
}

inline std::vector<float> noise(std::size_t count, unsigned seed = 1) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> sample(-0.5f, 0.5f);
  std::vector<float> samples(count);
  for (float& x : samples) x = std::round(sample(random) * 32768.0f) / 32768.0f;
  return samples;
}

/// log_spectrogram() by its definition, in double.
inline std::vector<double> slow_spectrogram(const data::Audio& audio, std::size_t length,
                                            std::size_t hop, std::size_t frames) {
  const std::size_t bins = length / 2 + 1;
  std::vector<double> values(bins * frames);
  for (std::size_t t = 0; t < frames; ++t) {
    for (std::size_t b = 0; b < bins; ++b) {
      std::complex<double> sum = 0;
      for (std::size_t i = 0; i < length && t * hop + i < audio.samples.size(); ++i) {
        const double angle =
            2 * std::numbers::pi * static_cast<double>(i) / static_cast<double>(length);
        sum += 32768.0 * audio.samples[t * hop + i] * (0.54 - 0.46 * std::cos(angle)) *
               std::polar(1.0, -angle * static_cast<double>(b));
      }
      values[b * frames + t] = std::log1p(std::abs(sum));
    }
  }
  double mean = 0, square = 0;
  for (const double x : values) mean += x / static_cast<double>(values.size());
  for (const double x : values)
    square += (x - mean) * (x - mean) / static_cast<double>(values.size());
  for (double& x : values) x = (x - mean) / std::sqrt(square);
  return values;
}

}  // namespace dgc::test
