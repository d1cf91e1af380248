#include "models/deepspeech.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "dgc/error.h"
#include "models/check.h"

namespace dgc::models {
namespace {

namespace nn = torch::nn;
using Lengths = std::vector<std::int64_t>;

constexpr const char* kDeepSpeech = "Deep Speech";

[[noreturn]] void refuse(ErrorCode code, const std::string& subject, const std::string& problem) {
  throw Error(code, kDeepSpeech, subject, problem);
}

const DeepSpeechOptions& checked(const DeepSpeechOptions& options) {
  if (options.bins < 1 || options.hidden < 1 || options.layers < 1 || options.channels < 1)
    refuse(ErrorCode::invalid_argument, "sizes", "must be at least 1");
  if (options.labels < 2)
    refuse(ErrorCode::invalid_argument, "labels", "must be at least 2: the blank and another");
  if (options.convolutions != 2 && options.convolutions != 3)
    refuse(ErrorCode::invalid_argument, "convolutions",
           fmt::format("{}, must be 2 or 3", options.convolutions));
  return options;
}

Lengths checked_lengths(const torch::Tensor& spectrograms, const torch::Tensor& lengths,
                        std::int64_t bins) {
  if (spectrograms.dim() != 4 || spectrograms.size(0) < 1 || spectrograms.size(1) != 1 ||
      spectrograms.size(2) != bins)
    refuse(ErrorCode::shape_mismatch, "spectrograms",
           fmt::format("{}, but (batch, 1, {}, frames) is needed", shape_of(spectrograms), bins));
  if (lengths.dim() != 1 || lengths.size(0) != spectrograms.size(0) ||
      lengths.scalar_type() != torch::kInt64)
    refuse(ErrorCode::shape_mismatch, "lengths",
           fmt::format("{} {}, but int64 ({}) is needed", c10::toString(lengths.scalar_type()),
                       shape_of(lengths), spectrograms.size(0)));
  const torch::Tensor plain = lengths.contiguous();
  const auto* first = plain.data_ptr<std::int64_t>();
  Lengths values(first, first + plain.numel());
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i] < 1 || values[i] > spectrograms.size(3))
      refuse(ErrorCode::invalid_argument, fmt::format("length of utterance {}", i),
             fmt::format("{}, must be from 1 to {}", values[i], spectrograms.size(3)));
  }
  return values;
}

/// (batch, channels, bins, time) to (1, channels, bins, frames of all utterances one after the
/// other): what batch normalisation must see, and nothing else.
torch::Tensor joined(const torch::Tensor& x, const Lengths& lengths) {
  std::vector<torch::Tensor> parts;
  for (std::size_t i = 0; i < lengths.size(); ++i)
    parts.push_back(x[static_cast<std::int64_t>(i)].narrow(2, 0, lengths[i]));
  return torch::cat(parts, 2).unsqueeze(0);
}

/// The opposite, with zeros up to the longest, as a convolution sees beyond the end of a single
/// utterance.
torch::Tensor apart(const torch::Tensor& x, const Lengths& lengths) {
  const std::int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  auto parts = x.squeeze(0).split_with_sizes(lengths, 2);
  for (auto& part : parts) part = torch::constant_pad_nd(part, {0, longest - part.size(2)});
  return torch::stack(parts);
}

SpeechFrames frames_of(const Lengths& lengths) {
  SpeechFrames frames;
  frames.time = *std::max_element(lengths.begin(), lengths.end());
  frames.batch = static_cast<std::int64_t>(lengths.size());
  std::vector<std::int64_t> forwards, backwards;
  for (std::int64_t i = 0; i < frames.batch; ++i) {
    const std::int64_t length = lengths[static_cast<std::size_t>(i)];
    for (std::int64_t t = 0; t < length; ++t) {
      forwards.push_back(t * frames.batch + i);
      backwards.push_back((length - 1 - t) * frames.batch + i);
    }
  }
  frames.forwards = torch::tensor(forwards);
  frames.backwards = torch::tensor(backwards);
  return frames;
}

/// Rows to (time, batch, features), zero where there are none.
torch::Tensor padded(const torch::Tensor& rows, const SpeechFrames& frames,
                     const torch::Tensor& places) {
  return torch::zeros({frames.time * frames.batch, rows.size(1)}, rows.options())
      .index_copy(0, places, rows)
      .view({frames.time, frames.batch, rows.size(1)});
}

}  // namespace

DeepSpeechOptions librispeech_options() { return {.hidden = 1200, .layers = 7, .gru = true}; }

std::int64_t output_frames(std::int64_t frames) { return (frames + 1) / 2; }

SpeechLayerImpl::SpeechLayerImpl(std::int64_t in, std::int64_t hidden, bool gru, bool normalised) {
  if (normalised) bn_ = register_module("bn", nn::BatchNorm1d(in));
  constexpr const char* kNames[] = {"forwards", "backwards"};
  for (std::size_t i = 0; i < 2; ++i) {
    if (gru)
      gru_[i] = register_module(kNames[i], nn::GRU(in, hidden));
    else
      lstm_[i] = register_module(kNames[i], nn::LSTM(in, hidden));
  }
}

torch::Tensor SpeechLayerImpl::forward(const torch::Tensor& rows, const SpeechFrames& frames) {
  const torch::Tensor input = bn_.is_empty() ? rows : bn_(rows);
  const auto run = [&](std::size_t direction, const torch::Tensor& places) {
    const torch::Tensor x = padded(input, frames, places);
    const torch::Tensor y = gru_[direction].is_empty() ? std::get<0>(lstm_[direction](x))
                                                       : std::get<0>(gru_[direction](x));
    return y.flatten(0, 1).index_select(0, places);
  };
  return run(0, frames.forwards) + run(1, frames.backwards);
}

DeepSpeechImpl::DeepSpeechImpl(const DeepSpeechOptions& options)
    : bins_(checked(options).bins),
      bn_(options.hidden),
      fc_(nn::LinearOptions(options.hidden, options.labels).bias(false)) {
  std::int64_t bins = bins_;
  std::int64_t in = 1;
  for (std::int64_t i = 0; i < options.convolutions; ++i) {
    const std::int64_t out = i < 2 ? options.channels : 3 * options.channels;
    const std::int64_t size = i == 0 ? 41 : 21;
    convolutions_.push_back(register_module(fmt::format("conv{}", i + 1),
                                            nn::Conv2d(nn::Conv2dOptions(in, out, {size, 11})
                                                           .stride({2, i == 0 ? 2 : 1})
                                                           .padding({size / 2, 5}))));
    norms_.push_back(register_module(fmt::format("bn{}", i + 1), nn::BatchNorm2d(out)));
    bins = (bins + 1) / 2;
    in = out;
  }
  for (std::int64_t i = 0; i < options.layers; ++i) {
    layers_.push_back(register_module(
        fmt::format("rnn{}", i + 1),
        SpeechLayer(i == 0 ? in * bins : options.hidden, options.hidden, options.gru, i > 0)));
  }
  register_module("bn", bn_);
  register_module("fc", fc_);
}

std::tuple<torch::Tensor, torch::Tensor> DeepSpeechImpl::forward(const torch::Tensor& spectrograms,
                                                                 const torch::Tensor& lengths) {
  Lengths output = checked_lengths(spectrograms, lengths, bins_);
  torch::Tensor x = joined(spectrograms, output);
  for (std::size_t i = 0; i < convolutions_.size(); ++i) {
    x = convolutions_[i](apart(x, output));
    if (i == 0) std::transform(output.begin(), output.end(), output.begin(), output_frames);
    // In fp32: libtorch 1.13 has no gradient of it in bf16.
    x = torch::hardtanh(norms_[i](joined(x, output)).to(torch::kFloat), 0.0, 20.0);
  }
  if (is_training() && x.size(3) < 2)
    refuse(ErrorCode::invalid_argument, "lengths",
           "training needs more than one output frame in a batch");

  const SpeechFrames frames = frames_of(output);
  torch::Tensor rows = x.squeeze(0).flatten(0, 1).t();  // (frames of all, channels * bins)
  for (auto& layer : layers_) rows = layer->forward(rows, frames);
  rows = fc_(bn_(rows)).to(torch::kFloat).log_softmax(1);
  return {padded(rows, frames, frames.forwards), torch::tensor(output)};
}

DeepSpeech make_deepspeech(const DeepSpeechOptions& options) { return DeepSpeech(options); }

}  // namespace dgc::models
