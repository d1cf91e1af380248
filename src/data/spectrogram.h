// What Deep Speech 2 hears: the log spectrogram of an utterance.
#pragma once

#include <cstdint>
#include <vector>

#include "data/audio.h"

namespace dgc::data {

struct Spectrogram {
  std::int64_t bins = 0, frames = 0;
  std::vector<float> values;  ///< bins x frames, one row per bin
};

/// Bins of frequency at a sample rate: 161 at 16 kHz, 81 at 8 kHz.
std::int64_t spectrogram_bins(int rate);

/// Frames of so many samples; at least 1.
std::int64_t spectrogram_frames(int rate, std::int64_t samples);

/// Hamming windows of 20 ms every 10 ms, log(1 + |Fourier transform|) with samples in units of
/// 16-bit audio, then mean 0 and deviation 1 over the whole utterance (all 0 for silence). No
/// padding, except that audio shorter than a window is filled up with silence. The same bits on
/// every run. Throws Error(invalid_argument) for a rate below 1000 or no samples.
Spectrogram log_spectrogram(const Audio& audio);

}  // namespace dgc::data
