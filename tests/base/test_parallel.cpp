#include "base/parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <vector>

namespace dgc {
namespace {

TEST(ThreadPool, RunsEveryTaskOnce) {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (const std::size_t tasks : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> seen(tasks);
      pool.run(tasks, [&](std::size_t i, int worker) {
        EXPECT_LT(worker, threads);
        ++seen[i];
      });
      for (const auto& count : seen) EXPECT_EQ(count.load(), 1);
    }
  }
}

TEST(ThreadPool, RethrowsAndStaysUsable) {
  ThreadPool pool(2);
  for (int round = 0; round < 20; ++round) {
    EXPECT_THROW(pool.run(100,
                          [](std::size_t i, int) {
                            if (i == 37) throw std::runtime_error("x");
                          }),
                 std::runtime_error);
    std::atomic<int> sum{0};
    pool.run(10, [&](std::size_t i, int) { sum += static_cast<int>(i); });
    EXPECT_EQ(sum.load(), 45);
  }
}

}  // namespace
}  // namespace dgc
