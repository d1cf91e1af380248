#include "train/speech_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/random.h"
#include "data/alphabet.h"
#include "data/audio.h"
#include "data/catalogue.h"
#include "dgc/error.h"
#include "train/recipe.h"

namespace dgc::train {
namespace {

/// Of a process. AN4's 42 minutes take 164 MB.
constexpr std::size_t kRememberedBytes = std::size_t{512} << 20;

data::SpeechSet synthetic_set(const Settings& settings) {
  data::SpeechSet set;
  set.rate = 16'000;
  const auto add = [](std::vector<data::Utterance>& part, std::int64_t count, std::uint64_t which) {
    for (std::int64_t i = 0; i < count; ++i) {
      Random random{7, which, static_cast<std::uint64_t>(i)};
      data::Utterance utterance{.file = fmt::format("{}-{}", which, i),
                                .seconds = 1.0 + 2.0 * random.uniform()};
      const auto letters = 5 + random.below(10);
      for (std::uint64_t l = 0; l < letters; ++l) {
        utterance.text += static_cast<char>('A' + random.below(26));
      }
      part.push_back(utterance);
    }
  };
  add(set.train, std::max<std::int64_t>(settings.examples, 1), 0);
  add(set.valid, 8, 1);
  add(set.test, 8, 2);
  return set;
}

data::SpeechSet open_set(const Settings& settings) {
  const data::SpeechOptions options{.strict = settings.strict, .max_seconds = settings.max_seconds};
  if (settings.recipe == "synthetic") return synthetic_set(settings);
  if (!settings.train.empty()) {
    return data::load_manifest(settings.train, settings.valid, settings.test, options);
  }
  if (settings.recipe == "an4")
    return data::load_an4(data::find_data("an4", settings.data), options);
  if (settings.recipe == "librispeech") {
    return data::load_librispeech(data::find_data("librispeech", settings.data), options);
  }
  return data::load_asterisk(options);
}

/// Frames that come out of the convolutions: one for 20 ms.
std::int64_t frames_for_ctc(double seconds) {
  return static_cast<std::int64_t>(seconds * 1000.0 / 10.0 - 1.0) / 2;
}

bool fits_ctc(const data::Utterance& utterance) {
  return frames_for_ctc(utterance.seconds) >=
         data::ctc_frames_needed(data::Alphabet::encode(utterance.text));
}

}  // namespace

SpeechSource::SpeechSource(const Settings& settings)
    : synthetic_(settings.recipe == "synthetic"), set_(open_set(settings)) {
  if (settings.examples > 0 && settings.examples < static_cast<std::int64_t>(set_.train.size())) {
    set_.train.resize(static_cast<std::size_t>(settings.examples));
  }
  std::erase_if(set_.train, [&](const data::Utterance& utterance) {
    if (fits_ctc(utterance)) return false;
    set_.skipped.push_back(utterance.file.string() + ": too short for its transcript");
    return true;
  });
  for (auto* part : {&set_.train, &set_.valid, &set_.test}) {
    std::stable_sort(
        part->begin(), part->end(),
        [](const data::Utterance& a, const data::Utterance& b) { return a.seconds < b.seconds; });
  }
}

const std::vector<data::Utterance>& SpeechSource::part_of(Part part) const {
  return part == Part::train ? set_.train : part == Part::valid ? set_.valid : set_.test;
}

std::int64_t SpeechSource::count(Part part) const {
  return static_cast<std::int64_t>(part_of(part).size());
}

const std::string& SpeechSource::text(Part part, std::int64_t i) const {
  return part_of(part)[static_cast<std::size_t>(i)].text;
}

std::int64_t SpeechSource::bins() const { return data::spectrogram_bins(set_.rate); }

std::shared_ptr<const data::Spectrogram> SpeechSource::spectrogram(Part part,
                                                                   std::int64_t i) const {
  const data::Utterance& utterance = part_of(part)[static_cast<std::size_t>(i)];
  {
    const std::scoped_lock lock(mutex_);
    if (const auto found = known_.find(&utterance); found != known_.end()) return found->second;
  }
  auto made = std::make_shared<data::Spectrogram>();
  if (synthetic_) {
    made->bins = bins();
    made->frames = std::llround(utterance.seconds * 100.0);
    Random random{8, static_cast<std::uint64_t>(i)};
    for (std::int64_t v = 0; v < made->bins * made->frames; ++v) {
      made->values.push_back(static_cast<float>(3.4 * (random.uniform() - 0.5)));
    }
  } else {
    *made = data::log_spectrogram(data::read_audio(utterance.file));
  }
  const std::scoped_lock lock(mutex_);
  const std::size_t bytes = made->values.size() * sizeof(float);
  if (remembered_ + bytes <= kRememberedBytes && known_.emplace(&utterance, made).second) {
    remembered_ += bytes;
  }
  return made;
}

std::vector<std::string> SpeechSource::facts() const {
  const auto minutes = [](const std::vector<data::Utterance>& part) {
    double seconds = 0.0;
    for (const data::Utterance& utterance : part) seconds += utterance.seconds;
    return seconds / 60.0;
  };
  std::vector<std::string> facts = {
      fmt::format("{} / {} / {} utterances to train, validate and test ({:.1f} / {:.1f} / {:.1f} "
                  "minutes), {} Hz",
                  set_.train.size(), set_.valid.size(), set_.test.size(), minutes(set_.train),
                  minutes(set_.valid), minutes(set_.test), set_.rate)};
  if (set_.too_long > 0) {
    facts.push_back(fmt::format("{} utterances are left out: over --max-seconds", set_.too_long));
  }
  if (!set_.skipped.empty()) {
    facts.push_back(fmt::format("{} utterances cannot be used, the first is {}",
                                set_.skipped.size(), set_.skipped.front()));
  }
  return facts;
}

}  // namespace dgc::train
