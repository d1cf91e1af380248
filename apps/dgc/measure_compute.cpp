#include <nlohmann/json.hpp>

#include "models/catalogue.h"
#include "torch_part.h"
#include "train/measure.h"
#include "train/recipe.h"

namespace dgc::app {

double measured_compute(const std::string& model, int batch, int threads) {
  constexpr int kSteps = 5;
  nlohmann::json given = train::synthetic_settings(models::model_named(model, "plan", "--model"));
  given.update({{"batch", batch},
                {"examples", (kSteps + 1) * batch},  // no step has fewer than the others
                {"threads", threads}});
  return train::measure_compute(train::resolve(given), kSteps);
}

}  // namespace dgc::app
