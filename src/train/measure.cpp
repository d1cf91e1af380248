#include "train/measure.h"

#include <algorithm>
#include <chrono>

#include "train/prefetch.h"
#include "train/task.h"

namespace dgc::train {

double measure_compute(const Settings& settings, int steps) {
  if (settings.threads > 0) torch::set_num_threads(static_cast<int>(settings.threads));
  const auto task = make_task(settings, {});
  Prefetcher batches(*task, {}, 1);
  std::vector<double> seconds;
  for (int i = 0; i <= steps; ++i) {
    const Prefetcher::Item item = batches.next();
    if (item.draw.first == 0) task->begin_epoch();
    const auto start = std::chrono::steady_clock::now();
    task->model().zero_grad();
    task->loss(item.batch).backward();
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    if (i > 0) seconds.push_back(spent.count());
  }
  const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
  std::nth_element(seconds.begin(), middle, seconds.end());
  return *middle;
}

}  // namespace dgc::train
