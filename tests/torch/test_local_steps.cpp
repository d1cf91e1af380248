// Local steps: at ratio 1 a round is averaging, for every inner optimizer; rates, means and
// residuals on examples worked by hand; what a round that fails leaves behind.
#include <cmath>
#include <limits>
#include <map>

#include "dgc/collectives.h"
#include "dgc/local_steps.h"
#include "support/inner_optimizers.h"
#include "support/tampered.h"
#include "support/torch_ranks.h"

namespace dgc::test::local_steps {
namespace {

constexpr int kWorkers = 3;
constexpr int kLocalSteps = 4;

LocalStepsOptions exact_options(int local_steps) {
  return LocalStepsOptions(local_steps)
      .schedule(Schedule(1.0))
      .values(ValueType::fp32)
      .dense_values(ValueType::fp32)
      .residual_decay(1.0)
      .check_parameters_every(1);
}

torch::OrderedDict<std::string, torch::Tensor> named(const Tensors& tensors) {
  torch::OrderedDict<std::string, torch::Tensor> all;
  for (std::size_t i = 0; i < tensors.size(); ++i) all.insert(std::to_string(i), tensors[i]);
  return all;
}

Tensors initial() {
  torch::manual_seed(1);
  return {torch::randn({20, 30}), torch::randn({30}), torch::randn({4, 3, 3, 3}), torch::randn({})};
}

void set_gradients(const Tensors& parameters, int step, int rank) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    torch::Tensor gradient = torch::empty(parameters[i].sizes());
    std::uint64_t seed = static_cast<std::uint64_t>(step) * 1000 +
                         static_cast<std::uint64_t>(rank) * 10 + static_cast<std::uint64_t>(i);
    for (float& g :
         std::span(gradient.data_ptr<float>(), static_cast<std::size_t>(gradient.numel()))) {
      seed = seed * 6364136223846793005u + 1442695040888963407u;
      g = static_cast<float>(seed >> 40) / static_cast<float>(1 << 24) - 0.5f;
    }
    parameters[i].mutable_grad() = gradient;
  }
}

/// A worker's own copies, which require gradients. Other ranks than 0 have to be told the values.
Tensors parameters_of(const Tensors& start, int rank) {
  Tensors parameters = copies_of(start);
  for (torch::Tensor& p : parameters) {
    if (rank != 0) p.zero_();
    p.requires_grad_();
  }
  return parameters;
}

/// In one process: each worker's parameters and inner optimizer, and the means of what they become.
Tensors averaged(const InnerOptimizer& inner, int rounds, double outer_lr) {
  std::vector<Tensors> all;
  std::vector<std::unique_ptr<torch::optim::Optimizer>> optimizers;
  for (int r = 0; r < kWorkers; ++r) {
    all.push_back(parameters_of(initial(), 0));
    optimizers.push_back(inner.make(all.back()));
  }
  const torch::NoGradGuard no_grad;
  for (int round = 0; round < rounds; ++round) {
    const Tensors theta0 = copies_of(all[0]);
    for (int r = 0; r < kWorkers; ++r) {
      const auto rank = static_cast<std::size_t>(r);
      for (int h = 0; h < kLocalSteps; ++h) {
        set_gradients(all[rank], round * kLocalSteps + h, r);
        optimizers[rank]->step();
      }
    }
    for (std::size_t i = 0; i < theta0.size(); ++i) {
      torch::Tensor mean = torch::zeros_like(theta0[i], torch::kDouble);
      for (const Tensors& one : all) mean += one[i].to(torch::kDouble) / kWorkers;
      const torch::Tensor start = theta0[i].to(torch::kDouble);
      for (Tensors& one : all) one[i].copy_(start + outer_lr * (mean - start));
    }
  }
  return copies_of(all[0]);
}

class LocalStepsInner : public testing::TestWithParam<InnerOptimizer> {};
INSTANTIATE_TEST_SUITE_P(Each, LocalStepsInner, testing::ValuesIn(inner_optimizers()),
                         [](const auto& one) { return std::string(one.param.name); });

TEST_P(LocalStepsInner, AtRatioOneARoundIsAveraging) {
  // 0.5: the outer rate counts once, whether it is in the residual or not.
  for (const double outer_lr : {1.0, 0.5}) {
    const Tensors expected = averaged(GetParam(), 3, outer_lr);
    for (const Algorithm algorithm : {Algorithm::allgather, Algorithm::dense, Algorithm::owner}) {
      std::vector<Tensors> result(kWorkers);
      const Tensors start = initial();
      run_workers(kWorkers, [&](Group& group) {
        Tensors w = parameters_of(start, group.rank());
        const auto inner = GetParam().make(w);
        LocalSteps local(
            group, named(w), *inner,
            exact_options(kLocalSteps).outer_lr(outer_lr).algorithm(algorithm).bucket_bytes(1000));
        for (int step = 0; step < 3 * kLocalSteps; ++step) {
          EXPECT_EQ(local.local_step(), step % kLocalSteps);
          set_gradients(w, step, group.rank());
          EXPECT_EQ(local.step(), (step + 1) % kLocalSteps == 0);
        }
        EXPECT_EQ(local.rounds(), 3u);
        local.check_parameters();
        for (std::size_t t = 0; t < w.size(); ++t) {
          for (const float v : local.state_of_rank().residual(t)) ASSERT_EQ(v, 0.0f);
        }
        result[static_cast<std::size_t>(group.rank())] = copies_of(w);
      });
      for (const Tensors& other : result) EXPECT_TRUE(identical(other, result[0]));
      EXPECT_LT(relative_difference(result[0], expected), 2e-6)
          << name_of(algorithm) << " " << outer_lr;
    }
  }
}

// DiLoCo: the outer optimizer is torch::optim::SGD with Nesterov momentum on the mean change.
TEST(LocalSteps, DiLoCoIsNesterovOnTheMeanChange) {
  const InnerOptimizer adam = inner_optimizers()[3];
  std::vector<Tensors> result(kWorkers);
  const Tensors start = initial();
  run_workers(kWorkers, [&](Group& group) {
    Tensors w = parameters_of(start, group.rank());
    const auto inner = adam.make(w);
    LocalSteps local(group, named(w), *inner, LocalStepsOptions::diloco(kLocalSteps));
    for (int step = 0; step < 5 * kLocalSteps; ++step) {
      set_gradients(w, step, group.rank());
      local.step();
    }
    result[static_cast<std::size_t>(group.rank())] = copies_of(w);
  });
  for (const Tensors& other : result) EXPECT_TRUE(identical(other, result[0]));

  Tensors outer = parameters_of(start, 0);
  torch::optim::SGD nesterov(outer, torch::optim::SGDOptions(0.7).momentum(0.9).nesterov(true));
  std::vector<Tensors> all;
  std::vector<std::unique_ptr<torch::optim::Optimizer>> optimizers;
  for (int r = 0; r < kWorkers; ++r) {
    all.push_back(parameters_of(start, 0));
    optimizers.push_back(adam.make(all.back()));
  }
  const torch::NoGradGuard no_grad;
  for (int step = 0; step < 5 * kLocalSteps; ++step) {
    for (std::size_t r = 0; r < all.size(); ++r) {
      set_gradients(all[r], step, static_cast<int>(r));
      optimizers[r]->step();
    }
    if ((step + 1) % kLocalSteps != 0) continue;
    for (std::size_t i = 0; i < outer.size(); ++i) {
      torch::Tensor change = torch::zeros_like(outer[i], torch::kDouble);
      for (const Tensors& one : all) change += (outer[i] - one[i]).to(torch::kDouble) / kWorkers;
      outer[i].mutable_grad() = change.to(torch::kFloat);
    }
    nesterov.step();
    for (Tensors& one : all) {
      for (std::size_t i = 0; i < outer.size(); ++i) one[i].copy_(outer[i]);
    }
  }
  EXPECT_LT(relative_difference(result[0], outer), 2e-6);
}

/// Two workers, one tensor of four elements of which one is sent, one local step of SGD at rate 1:
/// the change is the gradient.
struct ByHand {
  explicit ByHand(Group& group, const LocalStepsOptions& options)
      : w(torch::zeros({1, 4}).requires_grad_()),
        b(torch::zeros({2}).requires_grad_()),
        inner({w, b}, torch::optim::SGDOptions(1.0)),
        local(group, named({w, b}), inner, options) {}
  void step(std::vector<float> change, float of_b) {
    w.mutable_grad() = torch::tensor(change).view({1, 4});
    b.mutable_grad() = torch::full({2}, of_b);
    ASSERT_TRUE(local.step());
  }
  std::vector<float> theta() const { return {w.data_ptr<float>(), w.data_ptr<float>() + 4}; }
  std::vector<float> residual() const {
    const auto v = local.state_of_rank().residual(0);
    return {v.begin(), v.end()};
  }

  torch::Tensor w;
  torch::Tensor b;
  torch::optim::SGD inner;
  LocalSteps local;
};

TEST(LocalSteps, MeanOverAllWorkersOrOverTheSenders) {
  using Floats = std::vector<float>;
  for (const Mean mean : {Mean::workers, Mean::senders}) {
    run_workers(2, [&](Group& group) {
      ByHand run(group, exact_options(1).schedule(Schedule(0.25)).residual_decay(0.5).mean(mean));
      const bool first = group.rank() == 0;
      run.step(first ? Floats{4, 1, 0, 0} : Floats{0, 3, -6, 0}, first ? 2.0f : 4.0f);
      // 4 and -6 were sent, each by one of two.
      EXPECT_EQ(run.theta(), mean == Mean::workers ? (Floats{-2, 0, 3, 0}) : (Floats{-4, 0, 6, 0}));
      EXPECT_EQ(run.residual(), first ? (Floats{0, 0.5f, 0, 0}) : (Floats{0, 1.5f, 0, 0}));
      EXPECT_EQ(run.b[0].item<float>(), -3.0f) << "sent whole: by both";
      run.step(first ? Floats{0, 8, 1, 0} : Floats{0, 4, 0, 1}, 0.0f);
      // Both sent the second entry: half of what had waited, and half of the change.
      const float sent = (0.25f + 4.0f) + (0.75f + 2.0f);
      EXPECT_EQ(run.theta()[1], -sent);
      EXPECT_EQ(run.residual(), first ? (Floats{0, 0, 0.5f, 0}) : (Floats{0, 0, 0, 0.5f}));
    });
  }
}

// Unlike dgc::Sgd: what waits is applied at the rate of the step it comes from.
TEST(LocalSteps, TheInnerRateIsInsideWhatIsAccumulated) {
  run_workers(1, [](Group& group) {
    ByHand run(group, exact_options(1).schedule(Schedule(0.25)));
    run.step({4, 1, 0, 0}, 0.0f);
    run.inner.param_groups()[0].options().set_lr(0.125);
    run.step({0, 0, 0, 0}, 0.0f);
    EXPECT_EQ(run.theta(), (std::vector<float>{-4, -1, 0, 0}));
  });
}

TEST(LocalSteps, NothingIsLostWhateverTheValues) {
  for (const ValueType type : {ValueType::fp32, ValueType::table4, ValueType::table2}) {
    run_workers(2, [&](Group& group) {
      torch::Tensor w = torch::zeros({50, 40}).requires_grad_();
      torch::optim::SGD inner({w}, torch::optim::SGDOptions(0.1));
      LocalSteps local(group, named({w}), inner,
                       exact_options(2).schedule(Schedule(1.0 / 64)).values(type));
      torch::Tensor all = torch::zeros({50, 40}, torch::kDouble);
      for (int step = 0; step < 40; ++step) {
        set_gradients({w}, step, group.rank());
        all += 0.1 * w.grad().to(torch::kDouble) / 2;
        local.step();
      }
      const auto v = local.state_of_rank().residual(0);
      // What of both is not in w is in their residuals. One rank's half is checked by summing.
      torch::Tensor left =
          torch::tensor(std::vector<float>(v.begin(), v.end()), torch::kDouble).view({50, 40});
      torch::Tensor mine = (all - left).to(torch::kFloat).contiguous();
      all_reduce(group, {mine.data_ptr<float>(), 2000});
      EXPECT_LT((w.detach() + mine).abs().max().item<float>(), 1e-5f) << name_of(type);
      EXPECT_GT(local.stats().message_ratio, 20.0);
    });
  }
}

TEST(LocalSteps, ARoundThatFailsIsTakenBack) {
  std::vector<double> sums(3);
  const auto errors = run_ranks(3, std::chrono::seconds(5), [&](Group& inner_group) {
    int rounds = 0;
    TamperedGroup group(inner_group, [&](std::vector<std::byte>& bytes) {
      if (inner_group.rank() == 1 && rounds == 1 && is_message(bytes)) bytes.back() ^= std::byte{1};
    });
    const auto rank = static_cast<std::size_t>(group.rank());
    torch::Tensor w = torch::ones({16, 16}).requires_grad_();
    torch::Tensor later = torch::ones({16, 16}).requires_grad_();
    torch::optim::SGD inner({w, later}, torch::optim::SGDOptions(0.5));
    // Two buckets: what the failure finds not yet exchanged is accumulated too.
    LocalSteps local(group, named({w, later}), inner,
                     exact_options(2).schedule(Schedule(0.01)).bucket_bytes(1));
    const auto train = [&] {
      for (int h = 0; h < 2; ++h) {
        for (const torch::Tensor& p : {w, later}) p.mutable_grad() = torch::ones({16, 16});
        local.step();
      }
    };
    train();
    ++rounds;
    const Tensors before = copies_of({w, later});
    std::vector<double> residuals;
    const auto measure = [&] {
      double sum = 0.0;
      for (std::size_t t : {0, 1}) {
        for (const float x : local.state_of_rank().residual(t)) sum += static_cast<double>(x);
      }
      return sum;
    };
    const double held = measure();
    try {
      train();
    } catch (const Error&) {
      EXPECT_TRUE(identical({w, later}, before)) << "theta is theta0 again";
      sums[rank] = measure() - held;
      EXPECT_THROW(local.step(), Error) << "no round can follow";
      EXPECT_TRUE(identical({w, later}, before)) << "nor a local step";
      EXPECT_THROW(local.synchronize(), Error);
      EXPECT_EQ(measure(), held + sums[rank]) << "nor is anything counted twice";
      EXPECT_EQ(local.rounds(), 1u);
      throw;
    }
  });
  for (std::size_t rank = 0; rank < 3; ++rank) {
    ASSERT_TRUE(errors[rank]);
    // Two steps of 0.5 on 512 elements, a third of it.
    EXPECT_NEAR(sums[rank], 512.0 / 3.0, 1e-2) << rank;
  }
}

// Nothing of the change was compressed yet.
TEST(LocalSteps, ARankThatGivesUpKeepsItsChange) {
  const auto errors = run_ranks(2, std::chrono::seconds(5), [&](Group& group) {
    torch::Tensor w = torch::ones({16, 16}).requires_grad_();
    torch::optim::SGD inner({w}, torch::optim::SGDOptions(0.5));
    LocalSteps local(group, named({w}), inner, exact_options(2).schedule(Schedule(0.01)));
    w.mutable_grad() = torch::ones({16, 16});
    EXPECT_FALSE(local.step());
    const Error cause(ErrorCode::internal, "test", "rank 1", "is out of memory");
    if (group.rank() == 1) local.abandon(cause);
    try {
      local.step();
      ADD_FAILURE() << "a round with a rank that is gone";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("out of memory"), std::string::npos);
    }
    EXPECT_TRUE(torch::equal(w.detach(), torch::ones({16, 16})));
    // One step of 0.5 on rank 1, two on rank 0; half of it.
    const float expected = group.rank() == 1 ? 0.25f : 0.5f;
    for (const float v : local.state_of_rank().residual(0)) ASSERT_EQ(v, expected);
  });
  for (const auto& error : errors) EXPECT_FALSE(error) << error->what();
}

TEST(LocalSteps, AChangeThatIsNoNumberIsNamedOnAllRanks) {
  std::vector<Tensors> after(2);
  const auto errors = run_ranks(2, std::chrono::seconds(5), [&](Group& group) {
    torch::Tensor w = torch::ones({4, 4}).requires_grad_();
    torch::optim::SGD inner({w}, torch::optim::SGDOptions(1.0));
    LocalSteps local(group, {{{"layer.weight", w}}}, inner, exact_options(1));
    w.mutable_grad() =
        torch::full({4, 4}, group.rank() == 1 ? std::numeric_limits<float>::quiet_NaN() : 1.0f);
    try {
      local.step();
    } catch (const Error&) {
      after[static_cast<std::size_t>(group.rank())] = copies_of({w});
      throw;
    }
  });
  for (std::size_t rank = 0; rank < 2; ++rank) {
    ASSERT_TRUE(errors[rank]);
    EXPECT_NE(std::string(errors[rank]->what()).find("'layer.weight'"), std::string::npos);
    ASSERT_EQ(after[rank].size(), 1u);
    EXPECT_TRUE(torch::equal(after[rank][0], torch::ones({4, 4})));
  }
}

TEST(LocalSteps, RanksMayMakeDifferentNumbersOfSteps) {
  run_workers(2, [](Group& group) {
    torch::Tensor w = torch::zeros({4, 4}).requires_grad_();
    torch::optim::SGD inner({w}, torch::optim::SGDOptions(1.0));
    LocalSteps local(group, named({w}), inner, exact_options(3));
    // The data of rank 1 ends after one step.
    for (int step = 0; step < (group.rank() == 0 ? 3 : 1); ++step) {
      w.mutable_grad() = torch::ones({4, 4});
      local.step();
    }
    if (group.rank() == 1) {
      EXPECT_EQ(local.local_step(), 1);
      EXPECT_THROW(local.check_parameters(), Error) << "parameters differ between rounds";
      local.request_stop();
      local.synchronize();
    }
    EXPECT_TRUE(local.stop_requested());
    EXPECT_EQ(local.local_step(), 0);
    EXPECT_TRUE(torch::equal(w.detach(), torch::full({4, 4}, -2.0)));
    local.check_parameters();
  });
}

struct Mixed : torch::nn::Module {
  Mixed() {
    half = register_parameter("half", torch::ones({8, 8}, torch::kHalf));
    brain = register_parameter("brain", torch::ones({8, 8}, torch::kBFloat16));
    turned = register_parameter("turned", torch::ones({8, 4}).t().detach());
    fixed = register_parameter("fixed", torch::ones({3, 3}), false);
    unused = register_parameter("unused", torch::ones({3, 3}));
    tied = register_parameter("tied", brain);
    register_buffer("seen", torch::zeros({2}));
  }
  torch::Tensor half, brain, turned, fixed, unused, tied;
};

TEST(LocalSteps, TakesTypesAndLayoutsAsTheyAre) {
  run_workers(2, [](Group& group) {
    Mixed model;
    const torch::NoGradGuard no_grad;
    if (group.rank() == 1) model.fixed.fill_(7.0f);
    if (group.rank() == 1) model.turned.fill_(7.0f);
    torch::optim::SGD inner({model.half, model.brain, model.turned},
                            torch::optim::SGDOptions(0.25));
    LocalSteps local(group, model, inner, exact_options(2));
    EXPECT_TRUE(torch::equal(model.fixed, torch::ones({3, 3}))) << "broadcast";
    for (int step = 0; step < 4; ++step) {
      for (torch::Tensor p : {model.half, model.brain, model.turned}) {
        p.mutable_grad() = torch::full_like(p, group.rank() == 0 ? 0.5 : 1.5);
      }
      local.step();
    }
    for (const torch::Tensor& p : {model.half, model.brain, model.turned}) {
      EXPECT_TRUE(torch::equal(p.to(torch::kFloat), torch::zeros(p.sizes())));
    }
    const SgdReport report = local.report();
    std::map<std::string, SgdReport::Tensor> tensors;
    for (const auto& tensor : report.tensors) tensors[tensor.name] = tensor;
    EXPECT_EQ(tensors.at("fixed").mode, "frozen");
    EXPECT_EQ(tensors.at("unused").mode, "frozen");
    EXPECT_EQ(tensors.at("unused").why, "the inner optimizer does not have it");
    EXPECT_EQ(tensors.at("brain").aliases, std::vector<std::string>{"tied"});
    EXPECT_EQ(report.parameters, 64u + 64u + 32u);
    EXPECT_NE(report.text().find("allgather"), std::string::npos);
    model.buffers()[0].fill_(static_cast<float>(group.rank()));
    local.sync_buffers();
    EXPECT_EQ(model.buffers()[0][1].item<float>(), 0.5f);
  });
}

TEST(LocalSteps, SmallChangesOfShortFloatsAreNotLost) {
  run_workers(2, [](Group& group) {
    torch::Tensor w = torch::ones({4, 4}, torch::kBFloat16).requires_grad_();
    torch::optim::SGD inner({w}, torch::optim::SGDOptions(1.0));
    LocalSteps local(group, named({w}), inner, exact_options(1).outer_lr(1.0 / 64));
    for (int round = 0; round < 64; ++round) {
      w.mutable_grad() = torch::full({4, 4}, 1.0 / 128, torch::kBFloat16);
      local.step();
    }
    // 64 changes of 2^-13, each too small for a bfloat16 near 1, but not all of them together.
    EXPECT_LT(w[0][0].item<float>(), 1.0f);
  });
}

TEST(LocalSteps, WhatCannotBeIsRefusedByName) {
  const auto says = [](const std::function<void(torch::Tensor&, Group&)>& work,
                       const std::string& text) {
    const auto errors = run_ranks(1, std::chrono::seconds(5), [&](Group& group) {
      torch::Tensor w = torch::ones({4, 4}).requires_grad_();
      work(w, group);
    });
    ASSERT_TRUE(errors[0]) << text;
    EXPECT_EQ(errors[0]->code(), ErrorCode::invalid_argument);
    EXPECT_NE(std::string(errors[0]->what()).find(text), std::string::npos) << errors[0]->what();
  };
  const auto with = [&](LocalStepsOptions options, const std::string& text) {
    says(
        [&](torch::Tensor& w, Group& group) {
          torch::optim::SGD inner({w}, torch::optim::SGDOptions(1.0));
          LocalSteps local(group, named({w}), inner, options);
        },
        text);
  };
  with(LocalStepsOptions(0), "local_steps");
  with(LocalStepsOptions(1).outer_lr(-1.0), "outer_lr");
  with(LocalStepsOptions(1).outer_momentum(0.9), "outer_momentum");
  with(LocalStepsOptions(1).residual_decay(0.0), "residual_decay");
  with(LocalStepsOptions(1).residual_decay(1.5), "residual_decay");
  with(LocalStepsOptions(1).mean(Mean::senders).algorithm(Algorithm::owner), "senders");
  LocalStepsOptions momentum(1);
  momentum.compress.momentum = 0.9f;
  with(momentum, "momentum");
  LocalStepsOptions clipping(1);
  clipping.compress.clip_norm = 1.0;
  with(clipping, "clip_norm");
  says(
      [&](torch::Tensor& w, Group& group) {
        torch::Tensor other = torch::ones({2}).requires_grad_();
        torch::optim::SGD inner({w, other}, torch::optim::SGDOptions(1.0));
        LocalSteps local(group, named({w}), inner, LocalStepsOptions(1));
      },
      "parameter 1 of group 0");
  const auto errors = run_ranks(2, std::chrono::seconds(5), [&](Group& group) {
    torch::Tensor w = torch::ones({4, 4}).requires_grad_();
    torch::optim::SGD inner({w}, torch::optim::SGDOptions(1.0));
    LocalSteps local(group, named({w}), inner, LocalStepsOptions(1 + group.rank()));
  });
  for (const auto& error : errors) {
    ASSERT_TRUE(error);
    EXPECT_NE(std::string(error->what()).find("local steps"), std::string::npos) << error->what();
  }
}

}  // namespace
}  // namespace dgc::test::local_steps
