// What goes wrong with dgc::Sgd: every rank reads the cause, and nothing is lost.
#include <cmath>
#include <limits>

#include "support/tampered.h"
#include "support/torch_ranks.h"

namespace dgc::test {
namespace {

bool says(const std::optional<Error>& error, const std::string& text) {
  return error && std::string(error->what()).find(text) != std::string::npos;
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

TEST(SgdFaults, ARankThatGivesUpTellsTheOthersWhy) {
  const auto errors = run_ranks(3, std::chrono::seconds(5), [&](Group& group) {
    torch::Tensor w = torch::ones({16, 16}).requires_grad_();
    torch::Tensor unused = torch::ones({16, 16}).requires_grad_();
    Sgd sgd(group, {unused, w}, SgdOptions(0.1).bucket_bytes(1).schedule(Schedule(0.01)));
    w.sum().backward();
    if (group.rank() == 1) {
      const Error cause(ErrorCode::internal, "test", "rank 1", "is out of memory");
      sgd.abandon(cause);
      EXPECT_THROW(sgd.step(), Error);
      throw Error(cause);
    }
    sgd.step();
  });
  for (const auto& error : errors) EXPECT_TRUE(says(error, "is out of memory")) << error->what();
}

TEST(SgdFaults, GradientsThatWereNotYetCompressedAreAccumulatedToo) {
  // Rank 1's sparse message is damaged: the others give up before they come to the dense tensors,
  // which go after the sparse ones where they are large.
  std::vector<double> sums(3);
  const auto errors = run_ranks(3, std::chrono::seconds(5), [&](Group& inner) {
    TamperedGroup group(inner, [&](std::vector<std::byte>& bytes) {
      if (inner.rank() == 1 && is_message(bytes)) bytes.back() ^= std::byte{1};
    });
    torch::Tensor w = torch::ones({16, 16}).requires_grad_();
    torch::Tensor b = torch::ones({30'000}).requires_grad_();
    Sgd sgd(group, {w, b}, SgdOptions(0.1).momentum(0.9).schedule(Schedule(0.01)));
    (w.sum() + b.sum()).backward();
    try {
      sgd.step();
    } catch (const Error&) {
      double& sum = sums[static_cast<std::size_t>(group.rank())];
      for (const float x : sgd.state_of_rank().residual(1)) sum += x;
      // Nor twice, if somebody tries again.
      EXPECT_THROW(sgd.step(), Error);
      double again = 0.0;
      for (const float x : sgd.state_of_rank().residual(1)) again += x;
      EXPECT_EQ(again, sum);
      throw;
    }
  });
  for (const auto& error : errors) EXPECT_TRUE(error);
  EXPECT_NEAR(sums[0], 10'000.0, 0.01);
  EXPECT_NEAR(sums[2], 10'000.0, 0.01);
}

TEST(SgdFaults, ABadBiasIsNamedWithClippingToo) {
  const auto errors = run_ranks(2, std::chrono::seconds(5), [&](Group& group) {
    torch::Tensor w = torch::ones({4, 4}).requires_grad_();
    torch::Tensor b = torch::ones({4}).requires_grad_();
    Sgd sgd(group, {{{{{"w", w}, {"bias", b}}}, SgdGroupOptions(0.1)}},
            SgdOptions(0.1).clip_norm(1.0));
    (w.sum() + b.sum() * (group.rank() == 1 ? std::nan("") : 1.0)).backward();
    sgd.step();
  });
  for (const auto& error : errors) EXPECT_TRUE(says(error, "'bias'"));
}

TEST(SgdFaults, WhatUsesTheGroupIsRefusedWhileAStepIsUnderWay) {
  for (const bool overlap : {true, false}) {
    run_workers(2, [&](Group& group) {
      torch::nn::BatchNorm1d norm(3);
      Sgd sgd(group, *norm, SgdOptions(0.1).overlap(overlap));
      norm->weight.sum().backward();
      EXPECT_THROW(sgd.sync_buffers(), Error);
      EXPECT_THROW(sgd.broadcast_parameters(), Error);
      EXPECT_THROW(sgd.set_loss_scale(2.0), Error);
      sgd.step();
      sgd.sync_buffers();
      sgd.broadcast_parameters();
      sgd.set_loss_scale(2.0);
    });
  }
}

TEST(SgdFaults, BadParametersAreRefusedByNameOnAllRanks) {
  const auto expect = [](const std::string& text,
                         const std::function<std::vector<SgdGroup>(int)>& make) {
    const auto errors = run_ranks(2, std::chrono::seconds(5), [&](Group& group) {
      Sgd sgd(group, make(group.rank()), SgdOptions(0.1));
    });
    for (const auto& error : errors)
      EXPECT_TRUE(says(error, text)) << text << (error ? error->what() : "");
  };
  const torch::Tensor w = torch::ones({4, 4}).requires_grad_();
  using Named = torch::OrderedDict<std::string, torch::Tensor>;
  expect("'bad': is not a leaf", [&](int rank) -> std::vector<SgdGroup> {
    return {{Named({{"bad", rank == 1 ? w * 2 : w.detach().clone().requires_grad_()}}),
             SgdGroupOptions(0.1)}};
  });
  expect("'bad': is undefined", [&](int rank) -> std::vector<SgdGroup> {
    return {{Named({{"bad", rank == 1 ? torch::Tensor() : w.detach().clone().requires_grad_()}}),
             SgdGroupOptions(0.1)}};
  });
  expect("is the name of two parameters", [&](int) -> std::vector<SgdGroup> {
    return {{Named({{"a", w.detach().clone().requires_grad_()}}), SgdGroupOptions(0.1)},
            {Named({{"a", w.detach().clone().requires_grad_()}}), SgdGroupOptions(0.1)}};
  });
  expect("tied", [&](int) -> std::vector<SgdGroup> {
    const auto own = w.detach().clone().requires_grad_();
    return {{Named({{"a", own}}), SgdGroupOptions(0.1)},
            {Named({{"b", own}}), SgdGroupOptions(0.2)}};
  });
}

TEST(SgdFaults, RanksWithOtherOptionsAreFoundAtConstruction) {
  const auto errors = run_ranks(3, std::chrono::seconds(5), [&](Group& group) {
    torch::Tensor w = torch::ones({4, 4}).requires_grad_();
    Sgd sgd(group, {w}, SgdOptions(group.rank() == 2 ? 0.2 : 0.1));
  });
  for (const auto& error : errors) EXPECT_TRUE(says(error, "lr 0.2")) << error->what();
}

// A run of two steps: the first comparison is after the first of them, the last on request.
TEST(SgdFaults, AReplicaThatDivergesAtTheEndIsFoundOnRequest) {
  const auto errors = run_ranks(3, std::chrono::seconds(5), [&](Group& group) {
    torch::Tensor w = torch::ones({4, 4}).requires_grad_();
    Sgd sgd(group, {w}, SgdOptions(0.1));
    for (int step = 0; step < 2; ++step) {
      sgd.zero_grad();
      w.sum().backward();
      sgd.step();
      sgd.check_parameters();
    }
    {
      const torch::NoGradGuard no_grad;
      if (group.rank() == 1) w[2][3] += 1e-3;
    }
    try {
      sgd.check_parameters();
    } catch (const Error&) {
      // Whoever goes on reads that the group is dead, and why.
      w.sum().backward();
      sgd.step();
    }
  });
  for (const auto& error : errors) {
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), ErrorCode::diverged);
    EXPECT_EQ(error->subject(), "rank 1");
    EXPECT_TRUE(says(error, "the group ended earlier: compare parameters: rank 1: has other"))
        << error->what();
  }
}

TEST(SgdOptions, SettersWriteToTheOptionsOfCompressionAndExchange) {
  const SgdOptions defaults(0.1);
  EXPECT_EQ(defaults.momentum(), 0.0f);
  EXPECT_EQ(defaults.values(), ValueType::fp16);
  const SgdOptions options = SgdOptions(0.1)
                                 .momentum(0.9)
                                 .nesterov(true)
                                 .masking(false)
                                 .algorithm(Algorithm::owner)
                                 .check_parameters_every(7)
                                 .bucket_bytes(8);
  EXPECT_EQ(options.compress.momentum, 0.9f);
  EXPECT_TRUE(options.compress.nesterov);
  EXPECT_FALSE(options.compress.masking);
  EXPECT_EQ(options.exchange.algorithm, Algorithm::owner);
  EXPECT_EQ(options.exchange.check_parameters_every, 7);
  EXPECT_EQ(options.bucket_bytes(), 8);
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
