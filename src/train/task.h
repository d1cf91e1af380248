// What a recipe trains: a model, batches for it, its loss and how good it is.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "train/record.h"
#include "train/settings.h"

namespace dgc::train {

/// Positions [first, first + count) of an epoch's order: what all workers together use in a step.
struct Draw {
  std::uint64_t epoch = 0;
  std::int64_t first = 0;
  std::int64_t count = 0;
};

/// One worker's part of a step.
struct Batch {
  torch::Tensor input, target;
  torch::Tensor input_lengths, target_lengths;  ///< of speech
  std::int64_t examples = 0;  ///< 0 where a step has fewer examples than there are workers
  /// This part's share of the step's examples, times the number of workers: 1 when all have as
  /// many. Losses are weighted by it, so that the mean over workers is the mean over examples.
  double weight = 1.0;
};

struct MetricInfo {
  std::string name, unit;
  bool higher_is_better = true;
};

enum class Split { valid, test };

/// Which of the workers this is.
struct Place {
  int rank = 0;
  int workers = 1;
};

/// Files that could not be read, from any thread. With `strict` the first is thrown instead.
class Problems {
 public:
  explicit Problems(bool strict) : strict_(strict) {}
  void add(const std::exception& error);
  /// Those since the last call.
  std::vector<std::string> take();

 private:
  const bool strict_;
  std::mutex mutex_;
  std::vector<std::string> texts_;
};

/// For scores: of all data, nothing could be read.
[[noreturn]] void nothing_to_evaluate();

class Task {
 public:
  virtual ~Task() = default;

  virtual torch::nn::Module& model() = 0;
  virtual MetricInfo metric() const = 0;
  /// One line each: the data, the model's size, files that were left out.
  virtual std::vector<std::string> facts() const = 0;
  /// What the tokens of a text stand for, as a file for people who use the model; "" where it says
  /// nothing that the data do not say.
  virtual std::string vocabulary() const { return {}; }

  /// Positions in an epoch, and how many of them a step takes: images and utterances, or rows of
  /// text. Of all workers together.
  virtual std::int64_t positions() const = 0;
  virtual std::int64_t positions_of_step() const = 0;
  /// What a batch is counted in: "examples", "tokens".
  virtual std::string example_name() const { return "examples"; }
  /// Examples (or words) in so many positions, for rates.
  virtual std::int64_t examples_in(std::int64_t positions) const { return positions; }

  /// This worker's part. Depends on the settings and on `draw` alone; may be called from several
  /// threads at once.
  virtual Batch batch(const Draw& draw) const = 0;
  /// Mean over the examples of the batch. Layers compute it in settings.precision; evaluations are
  /// in fp32 always.
  torch::Tensor loss(const Batch& batch);

  /// Text goes on where the last batch ended: forgets that.
  virtual void begin_epoch() {}
  /// What is carried from step to step beside parameters; for checkpoints.
  virtual torch::Tensor carried() const { return {}; }
  virtual void carry(const torch::Tensor&) {}

  virtual bool has_test() const { return false; }
  /// This worker's share of the examples, as sums that add up over the workers.
  virtual std::vector<double> evaluate(Split split) = 0;
  virtual Scores scores(std::span<const double> sums) const = 0;

  Problems& problems() const { return *problems_; }

 protected:
  explicit Task(const Settings& settings)
      : mixed_(settings.precision == "bf16"),
        problems_(std::make_unique<Problems>(settings.strict)) {}
  virtual torch::Tensor loss_of(const Batch& batch) = 0;

 private:
  const bool mixed_;
  std::unique_ptr<Problems> problems_;
};

/// Reads the data and builds the model. The seed decides its first weights, on whatever thread.
/// Throws Error for data and settings that cannot be used.
std::unique_ptr<Task> make_task(const Settings& settings, Place place);

// By family; `synthetic` settings have no data to read.
std::unique_ptr<Task> make_image_task(const Settings& settings, Place place);
std::unique_ptr<Task> make_text_task(const Settings& settings, Place place);
std::unique_ptr<Task> make_gpt_task(const Settings& settings, Place place);
std::unique_ptr<Task> make_speech_task(const Settings& settings, Place place);

/// Throws Error(invalid_argument) unless there is at least one of `what` for every worker.
void require_examples(std::int64_t count, Place place, const std::string& what);

/// An epoch's order of the examples. Remembers the last two: loaders run ahead into the next epoch.
class EpochOrder {
 public:
  using Order = std::shared_ptr<const std::vector<std::int64_t>>;
  virtual ~EpochOrder() = default;
  Order of(std::uint64_t epoch) const;

 protected:
  virtual std::vector<std::int64_t> make(std::uint64_t epoch) const = 0;

 private:
  mutable std::mutex mutex_;
  mutable std::vector<std::pair<std::uint64_t, Order>> known_;
};

/// Every example once, in an order that seed and epoch give.
class ShuffledOrder : public EpochOrder {
 public:
  ShuffledOrder(std::int64_t count, std::int64_t seed) : count_(count), seed_(seed) {}

 protected:
  std::vector<std::int64_t> make(std::uint64_t epoch) const override;

 private:
  std::int64_t count_, seed_;
};

/// This worker's examples of a draw: as many as the others have, or one more.
std::span<const std::int64_t> examples_of(const EpochOrder::Order& order, const Draw& draw,
                                          Place place);

/// Batch::weight.
double weight_of(std::int64_t mine, const Draw& draw, Place place);

}  // namespace dgc::train
