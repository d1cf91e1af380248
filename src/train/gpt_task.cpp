// The transformer. The text is cut into windows as long as the context, which come in another order
// in each epoch; each worker has windows of its own. What does not fill a step is left out of its
// epoch, so that all workers have as many windows in every step.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/random.h"
#include "data/bpe.h"
#include "data/catalogue.h"
#include "data/plain_text.h"
#include "dgc/collectives.h"
#include "dgc/error.h"
#include "models/gpt.h"
#include "train/read_once.h"
#include "train/recipe.h"
#include "train/task.h"

namespace dgc::train {
namespace {

using Tokens = std::vector<std::int32_t>;

struct TokenText {
  data::Bpe bpe;
  std::int64_t vocabulary = 0;
  Tokens train, valid, test;
};

/// A chain in which each token is followed by one of three, so that there is something to learn.
TokenText synthetic_text(const Settings& settings) {
  TokenText text;
  text.vocabulary = settings.vocabulary;
  Random random{5};
  std::uint64_t token = 0;
  const auto fill = [&](Tokens& tokens, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
      token =
          Random{6, token, random.below(3)}.below(static_cast<std::uint64_t>(settings.vocabulary));
      tokens.push_back(static_cast<std::int32_t>(token));
    }
  };
  // A window, and what is said after it.
  fill(text.train, std::max<std::int64_t>(settings.examples, 1) * settings.context + 1);
  fill(text.valid, 8 * settings.context + 1);
  fill(text.test, 8 * settings.context + 1);
  return text;
}

std::shared_ptr<const TokenText> read_text(const Settings& settings) {
  if (settings.recipe == "synthetic") {
    return std::make_shared<const TokenText>(synthetic_text(settings));
  }
  const data::PlainText plain =
      !settings.train.empty()
          ? data::read_plain_text({settings.train, settings.valid, settings.test})
      : settings.corpus == "bible" ? data::read_plain_bible()
                                   : data::read_linux_doc(data::find_data(settings.corpus));
  TokenText text;
  if (settings.unit == "bpe") text.bpe = data::Bpe::train(plain.train, settings.vocabulary);
  text.vocabulary = text.bpe.size();
  text.train = text.bpe.encode(plain.train);
  text.valid = text.bpe.encode(plain.valid);
  text.test = text.bpe.encode(plain.test);
  const auto limit = [](Tokens& tokens, std::int64_t most) {
    if (most > 0 && most < std::ssize(tokens)) tokens.resize(static_cast<std::size_t>(most));
  };
  limit(text.train, settings.examples);
  limit(text.valid, settings.valid_examples);
  return std::make_shared<const TokenText>(std::move(text));
}

class GptTask : public Task {
 public:
  GptTask(const Settings& settings, Place place)
      : Task(settings),
        settings_(settings),
        place_(place),
        text_(read_once(settings, [&] { return read_text(settings); })),
        step_(batch_of_worker(settings, place.workers) * place.workers),
        windows_(windows_of(text_->train)),
        order_(windows_, settings.seed),
        model_(models::make_gpt({.vocabulary = text_->vocabulary,
                                 .context = settings.context,
                                 .width = settings.hidden,
                                 .layers = settings.layers,
                                 .heads = settings.heads,
                                 .rotary = settings.positions == "rotary"})) {
    if (windows_ < step_) {
      throw Error(ErrorCode::invalid_argument, "train", "text to train with",
                  fmt::format("{} tokens are {} windows of {}, too few for a step of {}",
                              text_->train.size(), windows_, settings.context, step_),
                  "use a smaller --batch or --context, fewer workers or more text");
    }
    for (const auto* part : {&text_->valid, &text_->test}) {
      if (windows_of(*part) > 0) continue;
      throw Error(ErrorCode::invalid_argument, "train",
                  part == &text_->valid ? "text to validate with" : "text to test with",
                  fmt::format("has {} tokens", part->size()),
                  fmt::format("at least {} are needed", settings.context + 1));
    }
  }

  torch::nn::Module& model() override { return *model_; }
  MetricInfo metric() const override { return {"bits per byte", "", false}; }
  std::string example_name() const override { return "tokens"; }
  std::vector<std::string> facts() const override {
    return {fmt::format("{} / {} / {} tokens to train, validate and test, vocabulary {}",
                        text_->train.size(), text_->valid.size(), text_->test.size(),
                        text_->vocabulary)};
  }
  std::string vocabulary() const override {
    return settings_.recipe == "synthetic" ? std::string() : text_->bpe.to_json();
  }

  std::int64_t positions() const override { return windows_ / step_ * step_; }
  std::int64_t positions_of_step() const override { return step_; }
  std::int64_t examples_in(std::int64_t positions) const override {
    return positions * settings_.context;
  }

  Batch batch(const Draw& draw) const override {
    const EpochOrder::Order order = order_.of(draw.epoch);
    const auto mine = examples_of(order, draw, place_);
    Batch batch = batch_of(text_->train, mine);
    batch.weight = weight_of(batch.examples, draw, place_);
    return batch;
  }

  torch::Tensor loss_of(const Batch& batch) override {
    const torch::Tensor logits = model_->forward(batch.input).flatten(0, 1);
    return torch::nn::functional::cross_entropy(logits.to(torch::kFloat), batch.target.flatten());
  }

  bool has_test() const override { return true; }
  /// Sums of log-likelihood lost, of tokens, and of the bytes that they stand for.
  std::vector<double> evaluate(Split split) override {
    const torch::NoGradGuard no_grad;
    const Tokens& tokens = split == Split::valid ? text_->valid : text_->test;
    const Range mine =
        part_of(static_cast<std::size_t>(windows_of(tokens)), place_.workers, place_.rank);
    model_->eval();
    std::vector<double> sums(3);
    constexpr std::size_t kAtOnce = 8;
    for (std::size_t first = mine.begin; first < mine.end; first += kAtOnce) {
      std::vector<std::int64_t> windows;
      for (std::size_t w = first; w < std::min(first + kAtOnce, mine.end); ++w) {
        windows.push_back(static_cast<std::int64_t>(w));
      }
      const Batch batch = batch_of(tokens, windows);
      sums[0] += torch::nn::functional::cross_entropy(
                     model_->forward(batch.input).flatten(0, 1), batch.target.flatten(),
                     torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum))
                     .item<double>();
      sums[1] += static_cast<double>(batch.target.numel());
      const std::int64_t* target = batch.target.data_ptr<std::int64_t>();
      for (std::int64_t i = 0; i < batch.target.numel(); ++i) sums[2] += bytes_of(target[i]);
    }
    model_->train();
    return sums;
  }

  Scores scores(std::span<const double> sums) const override {
    if (sums[1] == 0.0) nothing_to_evaluate();
    const double loss = sums[0] / sums[1];
    return {loss,
            {{"bits per byte", sums[0] / std::log(2.0) / sums[2]}, {"perplexity", std::exp(loss)}}};
  }

 private:
  /// Each window has the token after it as its last target.
  std::int64_t windows_of(const Tokens& tokens) const {
    return tokens.empty() ? 0 : (std::ssize(tokens) - 1) / settings_.context;
  }

  double bytes_of(std::int64_t token) const {
    // Generated tokens count as bytes.
    if (token >= text_->bpe.size()) return 1.0;
    return static_cast<double>(text_->bpe.bytes_of(static_cast<std::int32_t>(token)).size());
  }

  Batch batch_of(const Tokens& tokens, std::span<const std::int64_t> windows) const {
    const std::int64_t length = settings_.context;
    const auto count = static_cast<std::int64_t>(windows.size());
    Batch batch;
    batch.input = torch::empty({count, length}, torch::kLong);
    batch.target = torch::empty({count, length}, torch::kLong);
    auto* input = batch.input.data_ptr<std::int64_t>();
    auto* target = batch.target.data_ptr<std::int64_t>();
    for (const std::int64_t window : windows) {
      const auto begin = tokens.begin() + window * length;
      input = std::copy_n(begin, length, input);
      target = std::copy_n(begin + 1, length, target);
    }
    batch.examples = count;
    return batch;
  }

  Settings settings_;
  Place place_;
  std::shared_ptr<const TokenText> text_;
  std::int64_t step_;  // windows of all workers
  std::int64_t windows_;
  ShuffledOrder order_;
  models::Gpt model_;
};

}  // namespace

std::unique_ptr<Task> make_gpt_task(const Settings& settings, Place place) {
  return std::make_unique<GptTask>(settings, place);
}

}  // namespace dgc::train
