#include "plan_measure.h"

#include <nlohmann/json.hpp>

#include "train/measure.h"
#include "train/recipe.h"
#include "tuning.h"

namespace dgc::app {

double measured_compute(const std::string& model, int batch, int threads) {
  nlohmann::json given = {{"recipe", "synthetic"}, {"model", model}, {"batch", batch}};
  constexpr int kSteps = 5;
  given["examples"] = (kSteps + 1) * batch;  // no step has fewer than the others
  if (model == "deepspeech-1200") {          // the same model in another size
    given.update({{"model", "deepspeech"}, {"hidden", 1200}, {"layers", 7}, {"rnn", "gru"}});
  }
  given["threads"] = threads;
  use_fast_blas();
  return train::measure_compute(train::resolve(given), kSteps);
}

}  // namespace dgc::app
