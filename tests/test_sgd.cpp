// dgc::Sgd as an optimizer: groups, schedulers, loss scaling, statistics, reports, faults.
#include <cmath>
#include <limits>
#include <random>

#include "torch_ranks.h"

namespace dgc::test {
namespace {

bool says(const std::optional<Error>& error, const std::string& text) {
  return error && std::string(error->what()).find(text) != std::string::npos;
}

class SgdGroups : public testing::TestWithParam<Algorithm> {};

TEST_P(SgdGroups, HaveTheirOwnRateDecayAndWayToTravel) {
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

INSTANTIATE_TEST_SUITE_P(Algorithms, SgdGroups,
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

TEST(SgdSchedulers, ARateThatIsNoNumberIsRefused) {
  const auto errors = run_ranks(2, std::chrono::seconds(5), [](Group& group) {
    torch::Tensor w = torch::zeros({4}).requires_grad_();
    Sgd sgd(group, {w}, SgdOptions(1.0));
    if (group.rank() == 0) sgd.param_groups()[0].options().set_lr(std::nan(""));
    // The other rank may finish this step, whose bucket went out in backward, but not the next.
    for (int step = 0; step < 2; ++step) {
      sgd.zero_grad();
      w.sum().backward();
      sgd.step();
    }
  });
  for (const auto& error : errors) EXPECT_TRUE(says(error, "learning rate is nan"));
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

TEST(SgdNonFinite, FailsOnAllRanksNamingTheParameter) {
  std::vector<Tensors> before(3);
  std::vector<Tensors> after(3);
  const auto errors = run_ranks(3, std::chrono::seconds(5), [&](Group& group) {
    const auto rank = static_cast<std::size_t>(group.rank());
    torch::Tensor w = torch::ones({16, 16}).requires_grad_();
    Sgd sgd(group, {{{{{"layer.weight", w}}}, SgdGroupOptions(0.1)}},
            SgdOptions(0.1).momentum(0.9));
    before[rank] = copies_of({w});
    (w.sum() * (rank == 2 ? std::nan("") : 1.0)).backward();
    try {
      sgd.step();
    } catch (const Error&) {
      after[rank] = copies_of({w});
      throw;
    }
  });
  for (std::size_t rank = 0; rank < 3; ++rank) {
    EXPECT_TRUE(says(errors[rank], "'layer.weight'")) << rank;
    EXPECT_TRUE(identical(before[rank], after[rank]));
  }
}

TEST(SgdStats, AddUp) {
  run_workers(4, [&](Group& group) {
    torch::Tensor w = torch::zeros({1000, 100}).requires_grad_();
    torch::Tensor b = torch::zeros({100}).requires_grad_();
    Sgd sgd(
        group, {w, b},
        SgdOptions(0.1).momentum(0.9).schedule(Schedule(0.001)).algorithm(Algorithm::allgather));
    EXPECT_EQ(sgd.report().overlap, "on");
    std::mt19937 random(static_cast<unsigned>(group.rank()));
    torch::Tensor g = torch::empty({1000, 100});
    for (float& x : std::span(g.data_ptr<float>(), 100000))
      x = std::normal_distribution<float>()(random);
    w.mutable_grad() = g;
    b.mutable_grad() = torch::ones({100});
    const Traffic before = group.traffic();
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

TEST(SgdFaults, ARankThatLeavesBetweenBackwardAndStepIsNamed) {
  std::vector<double> sums(3);
  const auto errors = run_ranks(3, std::chrono::seconds(5), [&](Group& group) {
    torch::Tensor w = torch::ones({16, 16}).requires_grad_();
    torch::Tensor unused = torch::ones({16, 16}).requires_grad_();
    // The bucket of `w` is sent in backward, that of `unused` waits for step().
    Sgd sgd(group, {unused, w},
            SgdOptions(0.1).momentum(0.9).bucket_bytes(1).schedule(Schedule(0.01)));
    w.sum().backward();
    if (group.rank() == 1) throw Error(ErrorCode::internal, "test", "rank 1", "is out of memory");
    try {
      sgd.step();
    } catch (const Error&) {
      EXPECT_TRUE(torch::equal(w.detach(), torch::ones({16, 16})));
      for (const float x : sgd.state_of_rank().residual(1))
        sums[static_cast<std::size_t>(group.rank())] += x;
      throw;
    }
  });
  for (const std::size_t rank : {0u, 2u}) {
    EXPECT_TRUE(says(errors[rank], "gave up in step 0")) << errors[rank]->what();
    EXPECT_NEAR(sums[rank], 256.0 / 3.0, 1e-3) << "what was selected is back in v";
  }
}

TEST(SgdFaults, RanksWithOtherOptionsAreFoundAtConstruction) {
  const auto errors = run_ranks(3, std::chrono::seconds(5), [&](Group& group) {
    torch::Tensor w = torch::ones({4, 4}).requires_grad_();
    Sgd sgd(group, {w}, SgdOptions(group.rank() == 2 ? 0.2 : 0.1));
  });
  for (const auto& error : errors) EXPECT_TRUE(says(error, "lr 0.2")) << error->what();
}

TEST(SgdFaults, BadOptionsAreRefusedByName) {
  const std::vector<std::pair<SgdOptions, std::string>> cases = {
      {SgdOptions(-1.0), "lr"},
      {SgdOptions(0.1).weight_decay(-1.0), "weight_decay"},
      {SgdOptions(0.1).momentum(1.5), "momentum"},
      {SgdOptions(0.1).nesterov(true), "nesterov"},
      {SgdOptions(0.1).clip_norm(-1.0), "clip_norm"},
      {SgdOptions(0.1).bucket_bytes(0), "bucket_bytes"},
      {SgdOptions(0.1).accumulation_steps(0), "accumulation_steps"},
      {SgdOptions(0.1).loss_scale(0.0), "loss_scale"},
      {SgdOptions(0.1).threads(0), "threads"},
      {SgdOptions(0.1).buffers_every(-1), "buffers_every"},
      {SgdOptions(0.1).check_parameters_every(-1), "check_parameters_every"},
      {SgdOptions(0.1).dense_transport(ValueType::int8), "dense_transport"},
  };
  for (const auto& [options, name] : cases) {
    const auto errors = run_ranks(1, std::chrono::seconds(5), [&options = options](Group& group) {
      torch::Tensor w = torch::ones({4, 4}).requires_grad_();
      Sgd sgd(group, {w}, options);
    });
    EXPECT_TRUE(says(errors[0], name))
        << name << ": " << (errors[0] ? errors[0]->what() : "accepted");
  }
  const auto errors = run_ranks(1, std::chrono::seconds(5), [](Group& group) {
    Sgd sgd(group, {torch::ones({4})}, SgdOptions(0.1));
  });
  EXPECT_TRUE(says(errors[0], "none to train"));
}

TEST(SgdFaults, ParametersAddedLaterAreRefused) {
  const auto errors = run_ranks(1, std::chrono::seconds(5), [](Group& group) {
    torch::Tensor w = torch::ones({4, 4}).requires_grad_();
    Sgd sgd(group, {w}, SgdOptions(0.1));
    sgd.add_param_group({{torch::ones({4}).requires_grad_()}});
    w.sum().backward();
    sgd.step();
  });
  EXPECT_TRUE(says(errors[0], "added after construction"));
}

}  // namespace
}  // namespace dgc::test
