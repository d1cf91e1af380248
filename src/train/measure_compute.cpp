#include "train/measure_compute.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "train/prefetch.h"
#include "train/recipe.h"
#include "train/task.h"

namespace dgc::train {

double measure_compute(const models::Model& model, int batch, int threads) {
  constexpr int kSteps = 5;
  nlohmann::json given = synthetic_settings(model);
  given.update({{"batch", batch},
                {"examples", (kSteps + 1) * batch},  // no step has fewer than the others
                {"threads", threads}});
  if (threads > 0) torch::set_num_threads(threads);
  const auto task = make_task(resolve(given), {});
  Prefetcher batches(*task, {}, 1);
  std::vector<double> seconds;
  for (int i = 0; i <= kSteps; ++i) {
    const Prefetcher::Item item = batches.next();
    if (item.draw.first == 0) task->begin_epoch();
    const auto start = std::chrono::steady_clock::now();
    task->model().zero_grad();
    task->loss(item.batch).backward();
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    if (i > 0) seconds.push_back(spent.count());
  }
  const auto middle = seconds.begin() + kSteps / 2;
  std::nth_element(seconds.begin(), middle, seconds.end());
  return *middle;
}

}  // namespace dgc::train
