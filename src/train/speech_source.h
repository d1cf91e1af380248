// Utterances for training, wherever they come from: spectrograms and what is said.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "data/spectrogram.h"
#include "data/speech.h"
#include "train/settings.h"

namespace dgc::train {

/// Which utterances of a set. Shortest first.
enum class Part { train, valid, test };

/// All functions may be called from several threads.
class SpeechSource {
 public:
  /// Throws Error for data that are missing or cannot be used. Utterances whose transcript is too
  /// long for CTC at their length are left out of Part::train.
  explicit SpeechSource(const Settings& settings);

  std::int64_t count(Part part) const;
  const std::string& text(Part part, std::int64_t i) const;
  /// Throws Error when the file cannot be read. Remembered, as far as memory allows.
  std::shared_ptr<const data::Spectrogram> spectrogram(Part part, std::int64_t i) const;
  std::int64_t bins() const;
  std::vector<std::string> facts() const;

 private:
  const std::vector<data::Utterance>& part_of(Part part) const;
  bool synthetic_;
  data::SpeechSet set_;
  mutable std::mutex mutex_;
  mutable std::size_t remembered_ = 0;  // bytes
  mutable std::unordered_map<const data::Utterance*, std::shared_ptr<const data::Spectrogram>>
      known_;
};

}  // namespace dgc::train
