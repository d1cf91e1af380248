// Deep Speech 2 (Amodei et al., 2015) as deepspeech.pytorch has it: spectrograms to the
// probabilities of letters, to be trained with CTC.
//
// Convolutions over bins and time, bidirectional recurrent layers whose directions are summed, a
// linear layer without bias. Every recurrent layer has both biases that cuDNN has.
//
// models/catalogue.cpp has the sizes. The paper says 488.08 MiB for LibriSpeech's network, which is
// what comes out with Deep Speech 2's own three convolutions (488.09; 488.08 with 28 labels, or
// without the biases of the convolutions). We start from two, as deepspeech.pytorch and known
// recipes do; `convolutions = 3` gives the paper's size.
#pragma once

#include <torch/torch.h>

#include <array>
#include <cstdint>
#include <tuple>
#include <vector>

namespace dgc::models {

struct DeepSpeechOptions {
  std::int64_t bins = 161;        ///< of the spectrogram: 20 ms at 16 kHz; 81 at 8 kHz
  std::int64_t hidden = 800;      ///< units of a recurrent layer, in each direction
  std::int64_t layers = 5;        ///< recurrent ones
  std::int64_t labels = 29;       ///< with CTC's blank: blank, 26 letters, apostrophe, space
  bool gru = false;               ///< instead of LSTM
  std::int64_t convolutions = 2;  ///< 2 or 3
  /// Of the convolutions; the third has three times as many. The time they take grows with its
  /// square, and is most of the time of a small network.
  std::int64_t channels = 32;
};

/// AN4's network is what DeepSpeechOptions starts as; this is LibriSpeech's.
DeepSpeechOptions librispeech_options();

/// Frames that come out for `frames` that go in: half, rounded up. CTC needs as many as there are
/// labels in the transcript, and one more for each that repeats the one before it.
std::int64_t output_frames(std::int64_t frames);

/// Where the frames of a batch are. Layers exchange rows: the frames of all utterances one after
/// the other, without padding. `forwards` says for each row where it is in (time * batch),
/// `backwards` the same with every utterance reversed.
struct SpeechFrames {
  std::int64_t time = 0;
  std::int64_t batch = 0;
  torch::Tensor forwards, backwards;
};

/// A bidirectional recurrent layer, with batch normalisation of its input but in the first. Rows
/// in, the sum of both directions out.
///
/// Each direction is a layer of its own over padded utterances, the second over reversed ones, so
/// that padding comes after what counts. libtorch's packed sequences would do too, but their
/// backward took 2 to 3 times as long (libtorch 1.13; 128 units, 16 utterances of 150 frames).
class SpeechLayerImpl : public torch::nn::Module {
 public:
  SpeechLayerImpl(std::int64_t in, std::int64_t hidden, bool gru, bool normalised);
  torch::Tensor forward(const torch::Tensor& rows, const SpeechFrames& frames);

 private:
  torch::nn::BatchNorm1d bn_ = nullptr;
  std::array<torch::nn::LSTM, 2> lstm_{nullptr, nullptr};  // one of the two kinds
  std::array<torch::nn::GRU, 2> gru_{nullptr, nullptr};
};
TORCH_MODULE(SpeechLayer);

/// What is beyond the length of an utterance changes nothing: neither its result nor, in training,
/// the statistics of batch normalisation, which are over the frames of utterances alone
/// (deepspeech.pytorch counts padding too).
class DeepSpeechImpl : public torch::nn::Module {
 public:
  /// Throws Error(invalid_argument) for sizes below 1, fewer than 2 labels, or other than 2 or 3
  /// convolutions.
  explicit DeepSpeechImpl(const DeepSpeechOptions& options);

  /// Spectrograms (batch, 1, bins, frames) and their lengths in frames (batch), int64, to
  /// log-probabilities (time, batch, labels) and their lengths in output frames (batch), int64, on
  /// the CPU both, as torch::ctc_loss takes them. time is the longest output; log-probabilities
  /// beyond an utterance's own are 0. Throws Error(shape_mismatch) for other shapes and
  /// Error(invalid_argument) for a length below 1 or above frames, and for training on a batch that
  /// has a single output frame.
  std::tuple<torch::Tensor, torch::Tensor> forward(const torch::Tensor& spectrograms,
                                                   const torch::Tensor& lengths);

 private:
  std::int64_t bins_;
  std::vector<torch::nn::Conv2d> convolutions_;
  std::vector<torch::nn::BatchNorm2d> norms_;
  std::vector<SpeechLayer> layers_;
  torch::nn::BatchNorm1d bn_;
  torch::nn::Linear fc_;
};
TORCH_MODULE(DeepSpeech);

/// Weights come from libtorch's default generator, by its defaults.
DeepSpeech make_deepspeech(const DeepSpeechOptions& options = {});

}  // namespace dgc::models
