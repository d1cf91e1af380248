// The log spectrogram of Deep Speech 2:
//
//   frames       20 ms of samples every 10 ms, times a Hamming window
//   transform    Fourier, of which the magnitudes of the bins up to half the sample rate stay
//   scale        log(1 + magnitude), samples in units of 16-bit audio
//   normalise    mean 0 and deviation 1 over the whole utterance
//
// A window of 20 ms has no power of two of samples (320 at 16 kHz), so the transform is Stockham's
// for any product of small primes, written for several frames at once.
#include "data/spectrogram.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "dgc/error.h"

namespace dgc::data {
namespace {

std::int64_t window_length(int rate) { return rate / 50; }
std::int64_t hop_length(int rate) { return rate / 100; }

constexpr std::size_t kLanes = 8;  // frames that are transformed at once

/// The Fourier transform of any length, a product of small primes for choice (320 = 2^6 · 5), after
/// Stockham: each pass over a factor r of what is left makes r transforms of an r-th of the length,
/// and writes them where the next pass reads them in order. The lanes are innermost, so that every
/// loop runs over neighbours in memory.
class Transform {
 public:
  explicit Transform(std::size_t length)
      : length_(length), real_(length * kLanes), imaginary_(length * kLanes) {
    next_real_ = next_imaginary_ = real_;
    for (std::size_t i = 0; i < length; ++i) {
      const double angle =
          -2 * std::numbers::pi * static_cast<double>(i) / static_cast<double>(length);
      cosine_.push_back(static_cast<float>(std::cos(angle)));
      sine_.push_back(static_cast<float>(std::sin(angle)));
    }
    for (std::size_t left = length, factor = 2; left > 1;) {
      if (left % factor == 0) {
        factors_.push_back(factor);
        left /= factor;
      } else {
        ++factor;
      }
    }
  }

  /// Sample i of the frame in a lane, to be set before run().
  float& sample(std::size_t i, std::size_t lane) { return real_[i * kLanes + lane]; }

  void run() {
    std::fill(imaginary_.begin(), imaginary_.end(), 0.0f);
    std::size_t left = length_;
    for (const std::size_t factor : factors_) {
      pass(factor, left);
      left /= factor;
      real_.swap(next_real_);
      imaginary_.swap(next_imaginary_);
    }
  }

  float magnitude(std::size_t bin, std::size_t lane) const {
    const float x = real_[bin * kLanes + lane], y = imaginary_[bin * kLanes + lane];
    return std::sqrt(x * x + y * y);
  }

 private:
  /// `left` is the length of the transforms that are still to be made.
  void pass(std::size_t factor, std::size_t left) {
    const std::size_t parts = left / factor, stride = length_ / left * kLanes;
    const std::size_t turn = length_ / left;  // of the table, for one step of this length
    std::fill(next_real_.begin(), next_real_.end(), 0.0f);
    std::fill(next_imaginary_.begin(), next_imaginary_.end(), 0.0f);
    for (std::size_t p = 0; p < parts; ++p) {
      for (std::size_t j = 0; j < factor; ++j) {
        const std::size_t to = (p * factor + j) * stride;
        for (std::size_t k = 0; k < factor; ++k) {
          const std::size_t angle = j * (p + parts * k) % left * turn;
          add_turned((p + parts * k) * stride, to, stride, cosine_[angle], sine_[angle]);
        }
      }
    }
  }

  void add_turned(std::size_t from, std::size_t to, std::size_t count, float c, float s) {
    const float* __restrict const x = &real_[from];
    const float* __restrict const y = &imaginary_[from];
    float* __restrict const sum_x = &next_real_[to];
    float* __restrict const sum_y = &next_imaginary_[to];
    for (std::size_t i = 0; i < count; ++i) {
      sum_x[i] += x[i] * c - y[i] * s;
      sum_y[i] += x[i] * s + y[i] * c;
    }
  }

  std::size_t length_;
  std::vector<std::size_t> factors_;
  std::vector<float> cosine_, sine_;
  std::vector<float> real_, imaginary_, next_real_, next_imaginary_;  // by sample, then lane
};

std::vector<float> hamming_window(std::size_t length) {
  std::vector<float> window(length);
  for (std::size_t i = 0; i < length; ++i) {
    const double angle =
        2 * std::numbers::pi * static_cast<double>(i) / static_cast<double>(length);
    window[i] = static_cast<float>(0.54 - 0.46 * std::cos(angle));
  }
  return window;
}

/// To mean 0 and deviation 1; of a constant, to 0.
void normalise(std::vector<float>& values) {
  const auto count = static_cast<double>(values.size());
  double sum = 0;
  for (const float x : values) sum += x;
  const double mean = sum / count;
  double squares = 0;
  for (const float x : values) squares += (x - mean) * (x - mean);
  const double deviation = std::sqrt(squares / count);
  const double scale = deviation > 1e-6 ? 1 / deviation : 0;
  for (float& x : values) x = static_cast<float>((x - mean) * scale);
}

}  // namespace

std::int64_t spectrogram_bins(int rate) { return window_length(rate) / 2 + 1; }

std::int64_t spectrogram_frames(int rate, std::int64_t samples) {
  return 1 + std::max<std::int64_t>(samples - window_length(rate), 0) / hop_length(rate);
}

Spectrogram log_spectrogram(const Audio& audio) {
  if (audio.rate < 1000 || audio.samples.empty()) {
    throw Error(ErrorCode::invalid_argument, "make spectrogram", "audio",
                fmt::format("{} samples at {} Hz", audio.samples.size(), audio.rate),
                "at least one sample and 1000 Hz are needed");
  }
  const auto length = static_cast<std::size_t>(window_length(audio.rate));
  const auto hop = static_cast<std::size_t>(hop_length(audio.rate));
  Spectrogram result;
  result.bins = spectrogram_bins(audio.rate);
  result.frames = spectrogram_frames(audio.rate, static_cast<std::int64_t>(audio.samples.size()));
  const auto frames = static_cast<std::size_t>(result.frames);
  const std::vector<float> window = hamming_window(length);
  Transform transform(length);
  const auto bins = static_cast<std::size_t>(result.bins);
  result.values.resize(bins * frames);
  for (std::size_t first = 0; first < frames; first += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      for (std::size_t i = 0; i < length; ++i) {
        const std::size_t at = (first + lane) * hop + i;
        // 16-bit units: there log(1 + x) is a logarithm for all but the faintest sounds.
        transform.sample(i, lane) =
            at < audio.samples.size() ? audio.samples[at] * 32768.0f * window[i] : 0.0f;
      }
    }
    transform.run();
    const std::size_t count = std::min(kLanes, frames - first);
    for (std::size_t b = 0; b < bins; ++b) {
      for (std::size_t lane = 0; lane < count; ++lane) {
        result.values[b * frames + first + lane] = std::log1p(transform.magnitude(b, lane));
      }
    }
  }
  normalise(result.values);
  return result;
}

}  // namespace dgc::data
