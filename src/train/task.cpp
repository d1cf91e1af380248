#include "train/task.h"

#include <fmt/format.h>

#include <cmath>

#include "base/random.h"
#include "dgc/collectives.h"
#include "dgc/error.h"
#include "train/mixed_precision.h"
#include "train/recipe.h"

namespace dgc::train {

void Problems::add(const std::exception& error) {
  if (strict_) throw;  // inside the handler that caught it
  const std::scoped_lock lock(mutex_);
  texts_.emplace_back(error.what());
}

std::vector<std::string> Problems::take() {
  const std::scoped_lock lock(mutex_);
  return std::exchange(texts_, {});
}

torch::Tensor Task::loss(const Batch& batch) {
  const MixedPrecision mixed(mixed_);
  return loss_of(batch);
}

void nothing_to_evaluate() {
  throw Error(ErrorCode::io, "evaluate", "data", "none of the examples could be read",
              "are the data still there? The last checkpoint is good: --resume");
}

std::unique_ptr<Task> make_task(const Settings& settings, Place place) {
  // Workers that are threads build their models one after the other: all draw from one generator.
  static std::mutex building;
  const std::scoped_lock lock(building);
  torch::manual_seed(static_cast<std::uint64_t>(settings.seed));
  switch (family_of(settings.model)) {
    case Family::text:
      return make_text_task(settings, place);
    case Family::transformer:
      return make_gpt_task(settings, place);
    case Family::speech:
      return make_speech_task(settings, place);
    case Family::images:
      break;
  }
  return make_image_task(settings, place);
}

void require_examples(std::int64_t count, Place place, const std::string& what) {
  if (count >= place.workers) return;
  throw Error(ErrorCode::invalid_argument, "train", what,
              fmt::format("there are {} for {} workers", count, place.workers),
              "use fewer workers or more data");
}

EpochOrder::Order EpochOrder::of(std::uint64_t epoch) const {
  const std::scoped_lock lock(mutex_);
  for (const auto& [known, order] : known_) {
    if (known == epoch) return order;
  }
  if (known_.size() == 2) known_.erase(known_.begin());
  known_.emplace_back(epoch, std::make_shared<const std::vector<std::int64_t>>(make(epoch)));
  return known_.back().second;
}

std::vector<std::int64_t> ShuffledOrder::make(std::uint64_t epoch) const {
  return permutation(count_, Random{static_cast<std::uint64_t>(seed_), epoch});
}

std::span<const std::int64_t> examples_of(const EpochOrder::Order& order, const Draw& draw,
                                          Place place) {
  const Range mine = part_of(static_cast<std::size_t>(draw.count), place.workers, place.rank);
  return std::span(*order).subspan(static_cast<std::size_t>(draw.first) + mine.begin, mine.size());
}

double weight_of(std::int64_t mine, const Draw& draw, Place place) {
  return static_cast<double>(mine) * place.workers / static_cast<double>(draw.count);
}

}  // namespace dgc::train
