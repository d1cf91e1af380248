// dgc::Sgd as an optimizer: groups, schedulers, loss scaling, statistics, reports, faults.
#include <cmath>
#include <limits>
#include <random>

#include "support/torch_ranks.h"

namespace dgc::test {
namespace {

TEST(SgdDecay, NeverEntersVNorIsItSent) {
  run_workers(2, [&](Group& group) {
    torch::Tensor w = torch::ones({20, 20}).requires_grad_();
    torch::Tensor expected = torch::ones({20, 20}).requires_grad_();
    torch::optim::SGD reference({expected},
                                torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.5));
    Sgd sgd(group, {w}, SgdOptions(0.1).momentum(0.9).weight_decay(0.5).schedule(Schedule(0.01)));
    for (int step = 0; step < 10; ++step) {
      w.mutable_grad() = torch::zeros({20, 20});
      expected.mutable_grad() = torch::zeros({20, 20});
      sgd.step();
      reference.step();
      for (const float v : sgd.state_of_rank().residual(0)) EXPECT_EQ(v, 0.0f);
      EXPECT_EQ(sgd.stats().entries, 0u);
    }
    EXPECT_TRUE(torch::allclose(w, expected)) << "all entries decay at once, though 1 % is sent";
  });
}

TEST(SgdGroups, PrefixesTellNamesApart) {
  run_workers(2, [&](Group& group) {
    torch::nn::Sequential body(torch::nn::Linear(4, 4));
    torch::nn::Sequential head(torch::nn::Linear(4, 2));
    Sgd sgd(group,
            {{body->named_parameters(), SgdGroupOptions(0.1), "body."},
             {head->named_parameters(), SgdGroupOptions(0.2).weight_decay(0.3), "head."}},
            SgdOptions(0.1));
    const SgdReport report = sgd.report();
    EXPECT_EQ(report.tensors[0].name, "body.0.weight");
    EXPECT_EQ(report.tensors[2].name, "head.0.weight");
    EXPECT_NE(report.text().find("group 1: lr 0.2, weight decay 0.3"), std::string::npos);
  });
}

class SgdGroupsBy : public testing::TestWithParam<Algorithm> {};

TEST_P(SgdGroupsBy, HaveTheirOwnRateDecayAndWayToTravel) {
  run_workers(2, [&](Group& group) {
    torch::Tensor a = torch::ones({8, 8}).requires_grad_();
    torch::Tensor b = torch::ones({8, 8}).requires_grad_();
    torch::Tensor c = torch::ones({16}).requires_grad_();
    Sgd sgd(group,
            {{{{{"a", a}}}, SgdGroupOptions(0.5)},
             {{{{"b", b}}}, SgdGroupOptions(0.1).weight_decay(0.5).send(Send::dense)},
             {{{{"c", c}}}, SgdGroupOptions(0.25).send(Send::sparse)}},
            SgdOptions(1.0).schedule(Schedule(0.125)).algorithm(GetParam()));
    (a.sum() + b.sum() + c.sum()).backward();
    sgd.step();
    EXPECT_FLOAT_EQ(a.sum().item<float>(), 64.0f - 0.5f * 8.0f) << "8 of 64 entries";
    EXPECT_TRUE(torch::allclose(b, torch::full({8, 8}, 1.0 - 0.1 * 1.5)));
    EXPECT_FLOAT_EQ(c.sum().item<float>(), 16.0f - 0.25f * 2.0f) << "2 of 16 entries";
    const SgdReport report = sgd.report();
    EXPECT_EQ(report.tensors[0].mode, "sparse");
    EXPECT_EQ(report.tensors[0].why, "2 dimensions");
    EXPECT_EQ(report.tensors[0].k, 8u);
    EXPECT_GT(report.tensors[0].bytes, 0u);
    EXPECT_EQ(report.tensors[1].mode, "dense");
    EXPECT_EQ(report.tensors[1].why, "asked for by its group");
    EXPECT_EQ(report.tensors[2].mode, "sparse");
    EXPECT_EQ(report.sparse_parameters, 80u);
  });
}

INSTANTIATE_TEST_SUITE_P(Algorithms, SgdGroupsBy,
                         testing::Values(Algorithm::automatic, Algorithm::allgather,
                                         Algorithm::dense, Algorithm::hierarchical),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST(SgdSchedulers, OfLibtorchSetTheRate) {
  const auto train = [](torch::Tensor& w, torch::optim::Optimizer& optimizer) {
    torch::optim::StepLR scheduler(optimizer, 2, 0.1);
    for (int step = 0; step < 6; ++step) {
      w.mutable_grad() = torch::ones({4});
      optimizer.step();
      scheduler.step();
    }
  };
  torch::Tensor expected = torch::zeros({4}).requires_grad_();
  torch::optim::SGD reference({expected}, torch::optim::SGDOptions(1.0));
  train(expected, reference);
  run_workers(2, [&](Group& group) {
    torch::Tensor w = torch::zeros({4}).requires_grad_();
    Sgd sgd(group, {w}, SgdOptions(1.0));
    train(w, sgd);
    EXPECT_TRUE(torch::allclose(w, expected));
  });
}

TEST(SgdClosure, IsCalledOnceAndItsLossReturned) {
  run_workers(2, [&](Group& group) {
    torch::Tensor w = torch::ones({4, 4}).requires_grad_();
    Sgd sgd(group, {w}, SgdOptions(0.1).schedule(Schedule(1.0)));
    const torch::Tensor loss = sgd.step([&] {
      sgd.zero_grad();
      torch::Tensor l = w.square().sum();
      l.backward();
      return l;
    });
    EXPECT_FLOAT_EQ(loss.item<float>(), 16.0f);
    EXPECT_TRUE(torch::allclose(w, torch::full({4, 4}, 0.8)));
  });
}

TEST(SgdLossScale, IsUndoneBeforeClippingAndAccumulation) {
  std::vector<Tensors> results;
  for (const double scale : {1.0, 1024.0}) {
    run_workers(2, [&](Group& group) {
      torch::Tensor w = torch::ones({16, 16}).requires_grad_();
      Sgd sgd(group, {w},
              SgdOptions(0.1)
                  .momentum(0.9)
                  .clip_norm(3.0)
                  .nonfinite(NonFinite::skip)
                  .loss_scale(scale));
      int clipped = 0;
      for (int step = 0; step < 20; ++step) {
        sgd.zero_grad();
        ((w - group.rank()).square().sum() * scale).backward();
        sgd.step();
        clipped += sgd.stats().clip_factor < 1.0;
      }
      if (group.rank() == 0) {
        EXPECT_GT(clipped, 10);
      }
      if (group.rank() == 0) results.push_back(copies_of({w}));
    });
  }
  ASSERT_EQ(results.size(), 2u);
  EXPECT_TRUE(identical(results[0], results[1])) << "a power of two changes no bit";
}

TEST(SgdLossScale, GradientsSetByHandAreLookedAtToo) {
  for (const Algorithm algorithm : {Algorithm::automatic, Algorithm::hierarchical}) {
    run_workers(2, [&](Group& group) {
      torch::Tensor w = torch::ones({4, 4}).requires_grad_();
      Sgd sgd(group, {w}, SgdOptions(0.1).nonfinite(NonFinite::skip).algorithm(algorithm));
      w.mutable_grad() = torch::ones({4, 4});
      if (group.rank() == 1) w.mutable_grad()[1][2] = std::numeric_limits<float>::infinity();
      sgd.step();
      EXPECT_TRUE(sgd.stats().skipped);
      EXPECT_TRUE(torch::equal(w.detach(), torch::ones({4, 4})));
    });
  }
}

TEST(SgdLossScale, AStepWithInfinityIsSkippedEverywhere) {
  run_workers(3, [&](Group& group) {
    torch::Tensor w = torch::ones({16, 16}).requires_grad_();
    torch::Tensor b = torch::ones({16}).requires_grad_();
    Sgd sgd(group, {w, b},
            SgdOptions(0.1).momentum(0.9).weight_decay(0.1).nonfinite(NonFinite::skip));
    const auto step_with = [&](double factor) {
      sgd.zero_grad();
      ((w.square().sum() + b.sum()) * factor).backward();
      sgd.step();
    };
    step_with(1.0);
    const Tensors before = copies_of({w, b});
    const std::vector<float> v(sgd.state_of_rank().residual(0).begin(),
                               sgd.state_of_rank().residual(0).end());
    const std::vector<float> u(sgd.state_of_rank().velocity(0).begin(),
                               sgd.state_of_rank().velocity(0).end());
    step_with(group.rank() == 1 ? std::numeric_limits<double>::infinity() : 1.0);
    EXPECT_TRUE(sgd.stats().skipped);
    EXPECT_EQ(sgd.steps(), 1u);
    EXPECT_TRUE(identical({w, b}, before));
    EXPECT_TRUE(std::equal(v.begin(), v.end(), sgd.state_of_rank().residual(0).begin()));
    EXPECT_TRUE(std::equal(u.begin(), u.end(), sgd.state_of_rank().velocity(0).begin()));
    step_with(1.0);
    EXPECT_FALSE(sgd.stats().skipped);
    EXPECT_EQ(sgd.steps(), 2u);
    EXPECT_FALSE(identical({w, b}, before));
  });
}

TEST(SgdStats, AddUp) {
  run_workers(4, [&](Group& group) {
    torch::Tensor w = torch::zeros({1000, 100}).requires_grad_();
    torch::Tensor b = torch::zeros({100}).requires_grad_();
    // Comparing parameters is traffic of the group, and not of the step.
    Sgd sgd(group, {w, b},
            SgdOptions(0.1)
                .momentum(0.9)
                .schedule(Schedule(0.001))
                .algorithm(Algorithm::allgather)
                .check_parameters_every(0));
    EXPECT_EQ(sgd.report().overlap, "on");
    std::mt19937 random(static_cast<unsigned>(group.rank()));
    torch::Tensor g = torch::empty({1000, 100});
    for (float& x : std::span(g.data_ptr<float>(), 100000))
      x = std::normal_distribution<float>()(random);
    const Traffic before = group.traffic();
    ((w * g).sum() + b.sum()).backward();  // what goes out meanwhile counts too
    sgd.step();
    const StepStats& stats = sgd.stats();
    const Traffic moved = group.traffic() - before;
    EXPECT_EQ(stats.step, 0u);
    EXPECT_EQ(stats.ratio, 0.001);
    EXPECT_NEAR(stats.achieved_ratio, 0.001, 1e-9);
    EXPECT_EQ(stats.entries, 200u);
    EXPECT_EQ(stats.bytes_up, moved.bytes_sent);
    EXPECT_EQ(stats.bytes_down, moved.bytes_received);
    EXPECT_NEAR(stats.message_ratio, 4.0 * 100100 / static_cast<double>(stats.message_bytes), 1e-9);
    EXPECT_NEAR(stats.traffic_ratio,
                2 * 4.0 * 100100 * 0.75 / static_cast<double>(stats.bytes_down), 1e-9);
    // g/N; of v the 100 largest of 100,000 are gone.
    EXPECT_NEAR(stats.gradient_norm, std::sqrt(100100.0) / 4, 2.0);
    EXPECT_LT(stats.residual_norm, stats.gradient_norm);
    EXPECT_NEAR(stats.residual_norm, std::sqrt(100000.0) / 4, 3.0);
    EXPECT_NEAR(stats.threshold, 3.29 / 4, 0.1) << "0.1 % of a normal distribution lie beyond 3.29";
    EXPECT_GT(stats.compress, 0.0);
    EXPECT_GT(stats.encode, 0.0);
    EXPECT_GT(stats.exchange, 0.0);
    EXPECT_GT(stats.apply, 0.0);
    EXPECT_EQ(stats.clip_factor, 1.0);
  });
}

TEST(SgdReport, SaysWhyOverlapIsOff) {
  run_workers(1, [&](Group& group) {
    torch::Tensor w = torch::zeros({4, 4}).requires_grad_();
    EXPECT_NE(Sgd(group, {w}, SgdOptions(0.1).clip_norm(1.0))
                  .report()
                  .text()
                  .find("overlap off: clipping"),
              std::string::npos);
    EXPECT_NE(Sgd(group, {w}, SgdOptions(0.1).nonfinite(NonFinite::skip))
                  .report()
                  .overlap.find("skipped"),
              std::string::npos);
    EXPECT_EQ(Sgd(group, {w}, SgdOptions(0.1).overlap(false)).report().overlap, "off: asked for");
  });
}

TEST(SgdBuffers, AreBroadcastThenAveraged) {
  run_workers(4, [&](Group& group) {
    torch::nn::BatchNorm1d norm(3);
    {
      const torch::NoGradGuard no_grad;
      norm->running_mean.fill_(group.rank() + 7.0);
    }
    Sgd sgd(group, *norm, SgdOptions(0.1).buffers_every(2));
    EXPECT_TRUE(torch::allclose(norm->running_mean, torch::full({3}, 7.0)));
    for (int step = 0; step < 2; ++step) {
      norm->running_mean.fill_(static_cast<double>(group.rank()));
      norm->num_batches_tracked.fill_(group.rank() + 5);
      norm->weight.sum().backward();
      sgd.step();
      const double expected = step == 0 ? group.rank() : 1.5;
      EXPECT_TRUE(torch::allclose(norm->running_mean, torch::full({3}, expected))) << step;
    }
    EXPECT_EQ(norm->num_batches_tracked.item<std::int64_t>(), 5);
  });
}

TEST(SgdStop, ReachesAllRanksAtTheSameStep) {
  std::vector<int> stopped(3, -1);
  run_workers(3, [&](Group& group) {
    torch::Tensor w = torch::ones({4, 4}).requires_grad_();
    Sgd sgd(group, {w}, SgdOptions(0.1));
    for (int step = 0; step < 20 && !sgd.stop_requested(); ++step) {
      if (step == 4 && group.rank() == 1) sgd.request_stop();
      sgd.zero_grad();
      w.sum().backward();
      sgd.step();
      stopped[static_cast<std::size_t>(group.rank())] = step;
    }
  });
  EXPECT_EQ(stopped, (std::vector<int>{4, 4, 4}));
}

}  // namespace
}  // namespace dgc::test
