// Language models. The text is cut into as many columns as the batch has examples; a step takes
// the next `bptt` rows of all columns, and each worker has columns of its own: the state of the
// network goes on from step to step.
#include <fmt/format.h>

#include <cmath>

#include "base/random.h"
#include "data/bible.h"
#include "data/catalogue.h"
#include "data/text.h"
#include "dgc/collectives.h"
#include "dgc/error.h"
#include "models/lstm.h"
#include "train/read_once.h"
#include "train/recipe.h"
#include "train/task.h"

namespace dgc::train {
namespace {

/// Columns of this many tokens for evaluation, whatever the number of workers: fewer columns lose
/// less context, more can be spread over more workers.
constexpr std::int64_t kEvaluationColumns = 10;

/// A chain in which each word is followed by one of three, so that there is something to learn.
data::Corpus synthetic_corpus(const Settings& settings) {
  constexpr std::uint64_t kVocabulary = 10'000;
  data::Corpus corpus;
  for (std::uint64_t i = 0; i < kVocabulary; ++i) corpus.vocabulary.push_back(std::to_string(i));
  Random random{5};
  std::uint64_t word = 0;
  const auto fill = [&](std::vector<std::int32_t>& tokens, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
      word = Random{6, word, random.below(3)}.below(kVocabulary);
      tokens.push_back(static_cast<std::int32_t>(word));
    }
  };
  fill(corpus.train, std::max<std::int64_t>(settings.examples, 1) * settings.bptt);
  fill(corpus.valid, 2'000);
  fill(corpus.test, 2'000);
  return corpus;
}

data::Corpus open_corpus(const Settings& settings) {
  const data::TextUnit unit =
      settings.unit == "words" ? data::TextUnit::words : data::TextUnit::characters;
  if (settings.recipe == "synthetic") return synthetic_corpus(settings);
  data::Corpus corpus;
  if (!settings.train.empty()) {
    corpus =
        data::load_text({settings.train, settings.valid, settings.test}, unit, settings.vocabulary);
  } else if (settings.recipe == "ptb") {
    corpus = data::load_ptb(data::find_data("ptb", settings.data), unit);
  } else {
    corpus = data::load_bible(unit, settings.vocabulary);
  }
  if (settings.examples > 0 && settings.examples < static_cast<std::int64_t>(corpus.train.size())) {
    corpus.train.resize(static_cast<std::size_t>(settings.examples));
  }
  return corpus;
}

class TextTask : public Task {
 public:
  TextTask(const Settings& settings, Place place)
      : Task(settings),
        settings_(settings),
        place_(place),
        corpus_(read_once(
            settings, [&] { return std::make_shared<const data::Corpus>(open_corpus(settings)); })),
        columns_(batch_of_worker(settings, place.workers)),
        rows_(static_cast<std::int64_t>(corpus_->train.size()) / (columns_ * place.workers)),
        model_(models::make_language_model(
            {.vocabulary = static_cast<std::int64_t>(corpus_->vocabulary.size()),
             .embedding = settings.hidden,
             .hidden = settings.hidden,
             .layers = settings.layers,
             .dropout = settings.dropout,
             .tied = settings.tied})) {
    for (const auto* part : {&corpus_->valid, &corpus_->test}) {
      if (std::ssize(*part) >= 2 * kEvaluationColumns) continue;
      throw Error(ErrorCode::invalid_argument, "train",
                  part == &corpus_->valid ? "text to validate with" : "text to test with",
                  fmt::format("has {} tokens", part->size()),
                  fmt::format("at least {} are needed", 2 * kEvaluationColumns));
    }
    if (rows_ < 2) {
      throw Error(ErrorCode::invalid_argument, "train", "text to train with",
                  fmt::format("{} tokens are too few for {} columns", corpus_->train.size(),
                              columns_ * place.workers),
                  "use a smaller --batch, fewer workers or more text");
    }
  }

  torch::nn::Module& model() override { return *model_; }
  MetricInfo metric() const override { return {"perplexity", "", false}; }
  std::string example_name() const override { return "tokens"; }
  std::vector<std::string> facts() const override {
    return {fmt::format("{} / {} / {} {} to train, validate and test, vocabulary {}",
                        corpus_->train.size(), corpus_->valid.size(), corpus_->test.size(),
                        settings_.unit, corpus_->vocabulary.size())};
  }
  // The last row has nothing after it to predict.
  std::int64_t positions() const override { return rows_ - 1; }
  std::int64_t positions_of_step() const override { return settings_.bptt; }
  std::int64_t examples_in(std::int64_t positions) const override {
    return positions * columns_ * place_.workers;
  }

  Batch batch(const Draw& draw) const override {
    Batch batch;
    batch.input =
        rows_of(corpus_->train, rows_, columns_ * place_.rank, columns_, draw.first, draw.count);
    batch.target = rows_of(corpus_->train, rows_, columns_ * place_.rank, columns_, draw.first + 1,
                           draw.count);
    batch.examples = columns_ * draw.count;
    return batch;
  }

  torch::Tensor loss_of(const Batch& batch) override {
    auto [logits, state] = model_->forward(batch.input, state_);
    state_ = models::detached(state);
    return torch::nn::functional::cross_entropy(logits.flatten(0, 1).to(torch::kFloat),
                                                batch.target.flatten());
  }

  void begin_epoch() override { state_.reset(); }
  torch::Tensor carried() const override {
    return state_ ? torch::stack({std::get<0>(*state_), std::get<1>(*state_)}) : torch::Tensor();
  }
  void carry(const torch::Tensor& carried) override {
    state_.reset();
    if (carried.defined()) state_ = {carried[0].clone(), carried[1].clone()};
  }

  bool has_test() const override { return true; }
  /// Sums of log-likelihood lost, and tokens.
  std::vector<double> evaluate(Split split) override {
    const torch::NoGradGuard no_grad;
    const auto& tokens = split == Split::valid ? corpus_->valid : corpus_->test;
    const std::int64_t rows = static_cast<std::int64_t>(tokens.size()) / kEvaluationColumns;
    const Range mine = part_of(kEvaluationColumns, place_.workers, place_.rank);
    const auto columns = static_cast<std::int64_t>(mine.size());
    if (columns == 0 || rows < 2) return {0.0, 0.0};
    model_->eval();
    std::vector<double> sums(2);
    std::optional<models::LanguageModelImpl::State> state;
    for (std::int64_t first = 0; first < rows - 1; first += settings_.bptt) {
      const std::int64_t count = std::min(settings_.bptt, rows - 1 - first);
      const auto begin = static_cast<std::int64_t>(mine.begin);
      auto [logits, next] =
          model_->forward(rows_of(tokens, rows, begin, columns, first, count), state);
      state = next;
      sums[0] += torch::nn::functional::cross_entropy(
                     logits.flatten(0, 1),
                     rows_of(tokens, rows, begin, columns, first + 1, count).flatten(),
                     torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum))
                     .item<double>();
      sums[1] += static_cast<double>(count * columns);
    }
    model_->train();
    return sums;
  }

  Scores scores(std::span<const double> sums) const override {
    const double loss = sums[0] / std::max(sums[1], 1.0);
    Scores scores{loss, {{"perplexity", std::exp(loss)}}};
    if (settings_.unit == "characters") {
      scores.metrics.emplace_back("bits per character", loss / std::log(2.0));
    }
    return scores;
  }

 private:
  /// Rows [first, first + count) of columns [begin, begin + columns), each `rows` tokens long, as
  /// (time, batch).
  static torch::Tensor rows_of(const std::vector<std::int32_t>& tokens, std::int64_t rows,
                               std::int64_t begin, std::int64_t columns, std::int64_t first,
                               std::int64_t count) {
    torch::Tensor part = torch::empty({count, columns}, torch::kLong);
    std::int64_t* out = part.data_ptr<std::int64_t>();
    for (std::int64_t row = first; row < first + count; ++row) {
      for (std::int64_t column = begin; column < begin + columns; ++column) {
        *out++ = tokens[static_cast<std::size_t>(column * rows + row)];
      }
    }
    return part;
  }

  Settings settings_;
  Place place_;
  std::shared_ptr<const data::Corpus> corpus_;
  std::int64_t columns_;  // of this worker
  std::int64_t rows_;     // of each column
  models::LanguageModel model_;
  std::optional<models::LanguageModelImpl::State> state_;
};

}  // namespace

std::unique_ptr<Task> make_text_task(const Settings& settings, Place place) {
  return std::make_unique<TextTask>(settings, place);
}

}  // namespace dgc::train
