// Deep Speech 2 with CTC. Utterances of about the same length make a batch, so that little of it is
// padding; the first epoch goes from short to long (SortaGrad), later ones in random order.
#include <fmt/format.h>

#include "base/random.h"
#include "data/alphabet.h"
#include "data/error_rate.h"
#include "dgc/collectives.h"
#include "dgc/error.h"
#include "models/deepspeech.h"
#include "train/read_once.h"
#include "train/recipe.h"
#include "train/speech_source.h"
#include "train/task.h"

namespace dgc::train {
namespace {

/// Utterances by length in blocks of a step; only the last step of an epoch is not full.
class OrderByLength : public EpochOrder {
 public:
  OrderByLength(std::int64_t count, std::int64_t block, std::int64_t seed)
      : count_(count), block_(block), seed_(static_cast<std::uint64_t>(seed)) {}

 protected:
  std::vector<std::int64_t> make(std::uint64_t epoch) const override {
    const std::int64_t full = count_ / block_;
    std::vector<std::int64_t> blocks(static_cast<std::size_t>(full));
    std::iota(blocks.begin(), blocks.end(), std::int64_t{0});
    if (epoch > 0) blocks = permutation(full, Random{seed_, epoch});
    blocks.push_back(full);
    std::vector<std::int64_t> order;
    for (const std::int64_t b : blocks) {
      for (std::int64_t i = b * block_; i < std::min(count_, (b + 1) * block_); ++i) {
        order.push_back(i);
      }
    }
    return order;
  }

 private:
  std::int64_t count_, block_;
  std::uint64_t seed_;
};

class SpeechTask : public Task {
 public:
  SpeechTask(const Settings& settings, Place place)
      : Task(settings),
        place_(place),
        source_(
            read_once(settings, [&] { return std::make_shared<const SpeechSource>(settings); })),
        batch_(batch_of_worker(settings, place.workers)),
        order_(source_->count(Part::train), batch_ * place.workers, settings.seed),
        model_(models::make_deepspeech({.bins = source_->bins(),
                                        .hidden = settings.hidden,
                                        .layers = settings.layers,
                                        .labels = data::Alphabet::size(),
                                        .gru = settings.rnn == "gru",
                                        .convolutions = settings.convolutions,
                                        .channels = settings.channels})) {
    require_examples(source_->count(Part::train), place, "utterances to train with");
  }

  torch::nn::Module& model() override { return *model_; }
  MetricInfo metric() const override { return {"word error rate", "%", false}; }
  std::vector<std::string> facts() const override { return source_->facts(); }
  std::int64_t positions() const override { return source_->count(Part::train); }
  std::int64_t positions_of_step() const override { return batch_ * place_.workers; }

  Batch batch(const Draw& draw) const override {
    const auto order = order_.of(draw.epoch);
    const auto which = examples_of(order, draw, place_);
    Batch batch = read(Part::train, {which.begin(), which.end()}).batch;
    batch.weight = weight_of(batch.examples, draw, place_);
    return batch;
  }

  torch::Tensor loss_of(const Batch& batch) override {
    const auto [log_probabilities, lengths] = model_->forward(batch.input, batch.input_lengths);
    return sum_of_losses(log_probabilities, lengths, batch) / static_cast<double>(batch.examples);
  }

  bool has_test() const override { return true; }
  /// Sums of loss, utterances, word errors, words, character errors, characters.
  std::vector<double> evaluate(Split split) override {
    const torch::NoGradGuard no_grad;
    const Part part = split == Split::valid ? Part::valid : Part::test;
    model_->eval();
    std::vector<double> sums(6);
    constexpr std::size_t kAtOnce = 16;
    std::vector<std::int64_t> some;
    // Every so-many-th of a list that is sorted by length: all workers have as much to do.
    for (std::int64_t i = place_.rank; i < source_->count(part); i += place_.workers) {
      some.push_back(i);
      if (some.size() == kAtOnce || i + place_.workers >= source_->count(part)) {
        add_scores(read(part, std::exchange(some, {})), part, sums);
      }
    }
    model_->train();
    return sums;
  }

  Scores scores(std::span<const double> sums) const override {
    if (sums[1] == 0.0) nothing_to_evaluate();
    return {sums[0] / sums[1],
            {{"word error rate", 100.0 * sums[2] / std::max(sums[3], 1.0)},
             {"character error rate", 100.0 * sums[4] / std::max(sums[5], 1.0)}}};
  }

 private:
  struct Utterances {
    Batch batch;
    std::vector<std::int64_t> which;  // those that could be read
  };

  Utterances read(Part part, const std::vector<std::int64_t>& wanted) const {
    Utterances result;
    std::vector<std::shared_ptr<const data::Spectrogram>> spectrograms;
    std::int64_t longest = 0;
    for (const std::int64_t i : wanted) {
      try {
        spectrograms.push_back(source_->spectrogram(part, i));
      } catch (const Error& error) {
        problems().add(error);
        continue;
      }
      result.which.push_back(i);
      longest = std::max(longest, spectrograms.back()->frames);
    }
    Batch& batch = result.batch;
    batch.examples = static_cast<std::int64_t>(result.which.size());
    if (batch.examples == 0) return result;
    const std::int64_t bins = source_->bins();
    batch.input = torch::zeros({batch.examples, 1, bins, longest});
    batch.input_lengths = torch::empty({batch.examples}, torch::kLong);
    batch.target_lengths = torch::empty({batch.examples}, torch::kLong);
    std::vector<std::int64_t> labels;
    for (std::int64_t e = 0; e < batch.examples; ++e) {
      const data::Spectrogram& spectrogram = *spectrograms[static_cast<std::size_t>(e)];
      for (std::int64_t b = 0; b < bins; ++b) {
        std::copy_n(spectrogram.values.data() + b * spectrogram.frames, spectrogram.frames,
                    batch.input.data_ptr<float>() + (e * bins + b) * longest);
      }
      const auto encoded =
          data::Alphabet::encode(source_->text(part, result.which[static_cast<std::size_t>(e)]));
      labels.insert(labels.end(), encoded.begin(), encoded.end());
      batch.input_lengths.data_ptr<std::int64_t>()[e] = spectrogram.frames;
      batch.target_lengths.data_ptr<std::int64_t>()[e] = static_cast<std::int64_t>(encoded.size());
    }
    batch.target = torch::tensor(labels, torch::kLong);
    return result;
  }

  /// An infinite loss (a transcript too long for its frames) counts as zero.
  static torch::Tensor sum_of_losses(const torch::Tensor& log_probabilities,
                                     const torch::Tensor& lengths, const Batch& batch) {
    return torch::nn::functional::ctc_loss(log_probabilities, batch.target, lengths,
                                           batch.target_lengths,
                                           torch::nn::functional::CTCLossFuncOptions()
                                               .blank(data::Alphabet::kBlank)
                                               .reduction(torch::kSum)
                                               .zero_infinity(true));
  }

  void add_scores(const Utterances& utterances, Part part, std::vector<double>& sums) {
    const Batch& batch = utterances.batch;
    if (batch.examples == 0) return;
    const auto [log_probabilities, lengths] = model_->forward(batch.input, batch.input_lengths);
    sums[0] += sum_of_losses(log_probabilities, lengths, batch).item<double>();
    sums[1] += static_cast<double>(batch.examples);
    const torch::Tensor best =
        log_probabilities.argmax(2).transpose(0, 1).to(torch::kInt).contiguous();
    for (std::int64_t e = 0; e < batch.examples; ++e) {
      const auto length = static_cast<std::size_t>(lengths[e].item<std::int64_t>());
      const std::span<const std::int32_t> frames(best.data_ptr<std::int32_t>() + e * best.size(1),
                                                 length);
      const std::string heard = data::Alphabet::decode(data::greedy_ctc(frames));
      const std::string& said = source_->text(part, utterances.which[static_cast<std::size_t>(e)]);
      const data::ErrorCount words = data::word_errors(said, heard);
      const data::ErrorCount characters = data::character_errors(said, heard);
      sums[2] += static_cast<double>(words.errors);
      sums[3] += static_cast<double>(words.length);
      sums[4] += static_cast<double>(characters.errors);
      sums[5] += static_cast<double>(characters.length);
    }
  }

  Place place_;
  std::shared_ptr<const SpeechSource> source_;
  std::int64_t batch_;
  OrderByLength order_;
  models::DeepSpeech model_;
};

}  // namespace

std::unique_ptr<Task> make_speech_task(const Settings& settings, Place place) {
  return std::make_unique<SpeechTask>(settings, place);
}

}  // namespace dgc::train
