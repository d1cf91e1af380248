// How gradients reach the exchange: buckets beside backward, accumulation, missing gradients,
// types.
#include <atomic>

#include "support/tampered.h"
#include "support/torch_ranks.h"

namespace dgc::test {
namespace {

SgdOptions sparse_options() {
  return SgdOptions(0.05).momentum(0.9).schedule(Schedule(0.05)).algorithm(Algorithm::allgather);
}

/// Trains a small CNN on two workers and returns rank 0's parameters. `loop` does a step's
/// backward.
Tensors train_cnn(const SgdOptions& options, int steps,
                  const std::function<void(SmallCnn&, Sgd&, const torch::Tensor& x,
                                           const torch::Tensor& y)>& loop) {
  Tensors result;
  std::mutex making;
  run_workers(2, [&](Group& group) {
    std::unique_ptr<SmallCnn> model;
    torch::Tensor images;
    torch::Tensor labels;
    {
      const std::scoped_lock lock(making);
      torch::manual_seed(5);
      model = std::make_unique<SmallCnn>();
      images = torch::randn({steps, 2, 6, 1, 12, 12});
      labels = torch::randint(10, {steps, 2, 6}, torch::kLong);
    }
    Sgd sgd(group, *model, options);
    for (int step = 0; step < steps; ++step) {
      sgd.zero_grad();
      loop(*model, sgd, images[step][group.rank()], labels[step][group.rank()]);
      sgd.step();
    }
    if (group.rank() == 0) result = copies_of(model->parameters());
  });
  return result;
}

torch::Tensor loss_of(SmallCnn& model, const torch::Tensor& x, const torch::Tensor& y) {
  return torch::nn::functional::cross_entropy(model.forward(x), y);
}

void one_backward(SmallCnn& model, Sgd&, const torch::Tensor& x, const torch::Tensor& y) {
  loss_of(model, x, y).backward();
}

TEST(SgdBuckets, SizeAndOverlapDoNotChangeTheResult) {
  const Tensors whole = train_cnn(sparse_options().overlap(false), 10, one_backward);
  for (const std::int64_t bytes : {1, 2000, 1 << 20}) {
    const Tensors bucketed = train_cnn(sparse_options().bucket_bytes(bytes), 10, one_backward);
    EXPECT_TRUE(identical(bucketed, whole)) << bytes;
  }
}

TEST(SgdBuckets, AreExchangedWhileBackwardGoesOn) {
  std::vector<int> seen(2);
  run_workers(2, [&](Group& inner) {
    std::atomic<int> sent{0};
    TamperedGroup group(inner, [&sent](std::vector<std::byte>&) { ++sent; });
    torch::Tensor last = torch::ones({64, 64}).requires_grad_();
    torch::Tensor first = torch::ones({64, 64}).requires_grad_();
    Sgd sgd(group, {first, last}, sparse_options().bucket_bytes(1));
    const int before = sent;
    // The first layer's backward waits until the last layer's bucket is on its way.
    torch::Tensor h = first.mm(torch::ones({64, 64}));
    h.register_hook([&](torch::Tensor gradient) {
      for (int i = 0; i < 2000 && sent == before; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      seen[static_cast<std::size_t>(group.rank())] = sent - before;
      return gradient;
    });
    h.mm(last).sum().backward();
    sgd.step();
    EXPECT_EQ(sgd.report().buckets, 2);
    EXPECT_EQ(sgd.report().tensors[1].bucket, 0) << "the last layer goes first";
  });
  EXPECT_GT(seen[0], 0);
  EXPECT_GT(seen[1], 0);
}

TEST(SgdAccumulation, StepsAndNoSyncGiveTheSame) {
  const Tensors steps = train_cnn(sparse_options().accumulation_steps(3), 5,
                                  [](SmallCnn& model, Sgd&, const auto& x, const auto& y) {
                                    for (int part = 0; part < 3; ++part) {
                                      loss_of(model, x.slice(0, part * 2, part * 2 + 2),
                                              y.slice(0, part * 2, part * 2 + 2))
                                          .backward();
                                    }
                                  });
  const Tensors guarded =
      train_cnn(sparse_options(), 5, [](SmallCnn& model, Sgd& sgd, const auto& x, const auto& y) {
        {
          const auto guard = sgd.no_sync();
          for (int part = 0; part < 2; ++part) {
            loss_of(model, x.slice(0, part * 2, part * 2 + 2), y.slice(0, part * 2, part * 2 + 2))
                .backward();
          }
        }
        loss_of(model, x.slice(0, 4, 6), y.slice(0, 4, 6)).backward();
      });
  EXPECT_TRUE(identical(steps, guarded));
  const Tensors once = train_cnn(
      sparse_options(), 5,
      [](SmallCnn& model, Sgd&, const auto& x, const auto& y) { loss_of(model, x, y).backward(); });
  EXPECT_FALSE(identical(steps, once)) << "the sum of three means is not the mean of all";
}

TEST(SgdAccumulation, GradientsAddUpAsInPyTorch) {
  run_workers(2, [&](Group& group) {
    torch::Tensor w = torch::ones({4, 4}).requires_grad_();
    Sgd sgd(group, {w}, SgdOptions(0.1).schedule(Schedule(1.0)).accumulation_steps(3));
    for (int step = 1; step <= 2; ++step) {
      w.sum().backward();  // thrown away, and not counted
      sgd.zero_grad();
      for (int pass = 0; pass < 3; ++pass) (w.sum() * (group.rank() + 1.0)).backward();
      sgd.step();
      sgd.zero_grad();
      EXPECT_TRUE(torch::allclose(w, torch::full({4, 4}, 1.0 - step * 0.1 * 3 * 1.5)));
    }
  });
}

TEST(SgdAccumulation, ASecondBackwardIsRefusedByName) {
  const auto errors = run_ranks(2, std::chrono::seconds(5), [&](Group& group) {
    torch::Tensor w = torch::ones({8, 8}).requires_grad_();
    Sgd sgd(group, {{{{{"weight", w}}}, SgdGroupOptions(0.1)}}, sparse_options());
    w.sum().backward();
    w.sum().backward();
    sgd.step();
  });
  for (const auto& error : errors) {
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), ErrorCode::wrong_order);
    EXPECT_NE(std::string(error->what()).find("'weight'"), std::string::npos) << error->what();
    EXPECT_NE(error->hint().find("no_sync"), std::string::npos);
  }
}

TEST(SgdGradients, ChangedAfterBackwardAreRefusedByName) {
  const auto errors = run_ranks(2, std::chrono::seconds(5), [&](Group& group) {
    torch::Tensor w = torch::ones({8, 8}).requires_grad_();
    Sgd sgd(group, {{{{{"weight", w}}}, SgdGroupOptions(0.1)}}, sparse_options());
    w.sum().backward();
    if (group.rank() == 1) w.mutable_grad().mul_(0.5);
    sgd.step();
  });
  ASSERT_TRUE(errors[1]);
  EXPECT_EQ(errors[1]->code(), ErrorCode::wrong_order);
  EXPECT_NE(std::string(errors[1]->what()).find("'weight'"), std::string::npos);
}

TEST(SgdGradients, MayBeChangedWithoutOverlap) {
  for (const double clip : {0.0, 100.0}) {
    run_workers(2, [&](Group& group) {
      torch::Tensor w = torch::ones({8, 8}).requires_grad_();
      Sgd sgd(group, {w}, SgdOptions(0.1).schedule(Schedule(1.0)).overlap(false).clip_norm(clip));
      w.sum().backward();
      w.mutable_grad().mul_(0.5);
      sgd.step();
      EXPECT_TRUE(torch::allclose(w, torch::full({8, 8}, 0.95)));
    });
  }
}

TEST(SgdMissing, OnAllRanksTheParameterIsLeftAlone) {
  run_workers(2, [&](Group& group) {
    torch::Tensor used = torch::ones({4, 4}).requires_grad_();
    torch::Tensor unused = torch::ones({4, 4}).requires_grad_();
    Sgd sgd(group, {unused, used},
            SgdOptions(0.1).momentum(0.9).weight_decay(0.1).schedule(Schedule(1.0)));
    (used.sum() + unused.sum()).backward();  // so that there is momentum
    sgd.step();
    const auto before = unused.detach().clone();
    const auto used_before = used.detach().clone();
    const std::vector<float> u(sgd.state_of_rank().velocity(0).begin(),
                               sgd.state_of_rank().velocity(0).end());
    for (int i = 0; i < 3; ++i) {
      sgd.zero_grad();
      used.sum().backward();
      sgd.step();
    }
    EXPECT_TRUE(torch::equal(unused, before));
    EXPECT_FALSE(torch::equal(used, used_before));
    EXPECT_TRUE(std::equal(u.begin(), u.end(), sgd.state_of_rank().velocity(0).begin()));
  });
}

TEST(SgdMissing, OnSomeRanksTheyContributeZero) {
  // Against one process with the averaged gradient, heavy-ball and decay.
  torch::Tensor expected = torch::ones({4, 4}).requires_grad_();
  torch::optim::SGD reference({expected},
                              torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.1));
  for (int step = 0; step < 6; ++step) {
    expected.mutable_grad() = torch::full({4, 4}, step % 2 == 0 ? 1.0 / 3.0 : 1.0);
    reference.step();
  }
  run_workers(3, [&](Group& group) {
    torch::Tensor w = torch::ones({4, 4}).requires_grad_();
    torch::Tensor other = torch::ones({4, 4}).requires_grad_();
    Sgd sgd(
        group, {w, other},
        SgdOptions(0.1).momentum(0.9).weight_decay(0.1).schedule(Schedule(1.0)).bucket_bytes(1));
    for (int step = 0; step < 6; ++step) {
      sgd.zero_grad();
      const bool has = step % 2 == 1 || group.rank() == 1;
      (has ? w.sum() + other.sum() : other.sum()).backward();
      sgd.step();
    }
    EXPECT_LT(relative_difference({w}, {expected}), 1e-6);
  });
}

TEST(SgdParameters, TiedOnesAreCountedOnce) {
  run_workers(2, [&](Group& group) {
    torch::Tensor w = torch::ones({6, 6}).requires_grad_();
    Sgd sgd(group, {{{{{"in", w}, {"out", w}}}, SgdGroupOptions(0.1)}},
            SgdOptions(0.1).schedule(Schedule(1.0)));
    w.mm(w).sum().backward();  // both uses: 12 for each entry
    sgd.step();
    EXPECT_TRUE(torch::allclose(w, torch::full({6, 6}, 1.0 - 0.1 * 12.0)));
    const SgdReport report = sgd.report();
    ASSERT_EQ(report.tensors.size(), 1u);
    EXPECT_EQ(report.tensors[0].aliases, std::vector<std::string>{"out"});
    EXPECT_EQ(report.parameters, 36u);
  });
}

TEST(SgdParameters, FrozenOnesStayAndAreReported) {
  run_workers(2, [&](Group& group) {
    torch::Tensor frozen = torch::full({4, 4}, static_cast<double>(group.rank()));
    torch::Tensor w = torch::ones({4, 4}).requires_grad_();
    Sgd sgd(group, {{{{{"frozen", frozen}, {"w", w}}}, SgdGroupOptions(0.1)}},
            SgdOptions(0.1).weight_decay(0.1));
    w.mul(frozen + 1).sum().backward();
    sgd.step();
    EXPECT_TRUE(torch::equal(frozen, torch::zeros({4, 4}))) << "rank 0's, not trained";
    EXPECT_EQ(sgd.report().tensors[0].mode, "frozen");
    EXPECT_NE(sgd.report().text().find("requires_grad is off"), std::string::npos);
  });
}

TEST(SgdParameters, UnfreezingLaterIsRefusedByName) {
  const auto errors = run_ranks(2, std::chrono::seconds(5), [&](Group& group) {
    torch::Tensor late = torch::ones({4, 4});
    torch::Tensor w = torch::ones({4, 4}).requires_grad_();
    Sgd sgd(group, {{{{{"late", late}, {"w", w}}}, SgdGroupOptions(0.1)}}, SgdOptions(0.1));
    late.requires_grad_();
    (w * late).sum().backward();
    sgd.step();
  });
  for (const auto& error : errors) {
    ASSERT_TRUE(error);
    EXPECT_NE(std::string(error->what()).find("'late'"), std::string::npos) << error->what();
  }
}

TEST(SgdParameters, NeitherTheyNorTheirGradientsNeedBeContiguous) {
  run_workers(2, [&](Group& group) {
    torch::Tensor transposed = torch::arange(12.0).reshape({3, 4}).t().detach().requires_grad_();
    torch::Tensor plain = torch::ones({3, 4}).requires_grad_();
    torch::Tensor channels =
        torch::ones({2, 3, 4, 4}).contiguous(torch::MemoryFormat::ChannelsLast).requires_grad_();
    const torch::Tensor before = transposed.detach().clone();
    Sgd sgd(group, {transposed, plain, channels}, SgdOptions(1.0).schedule(Schedule(1.0)));
    const auto weights = torch::arange(12.0).reshape({4, 3});
    ((transposed * weights).sum() + (plain.t() * weights).sum() + channels.mean()).backward();
    ASSERT_FALSE(plain.grad().is_contiguous() && transposed.grad().is_contiguous());
    sgd.step();
    EXPECT_TRUE(torch::allclose(transposed, before - weights));
    EXPECT_TRUE(torch::allclose(plain, 1.0 - weights.t()));
    EXPECT_TRUE(torch::allclose(channels, torch::full({2, 3, 4, 4}, 1.0 - 1.0 / 96.0)));
  });
}

TEST(SgdParameters, SparseGradientsOfEmbeddingsWork) {
  run_workers(2, [&](Group& group) {
    torch::nn::Embedding embedding(torch::nn::EmbeddingOptions(10, 4).sparse(true));
    {
      const torch::NoGradGuard no_grad;
      embedding->weight.fill_(1.0);
    }
    Sgd sgd(group, *embedding, SgdOptions(1.0).schedule(Schedule(1.0)));
    embedding(torch::tensor({group.rank()})).sum().backward();
    sgd.step();
    EXPECT_TRUE(torch::allclose(embedding->weight[0], torch::full({4}, 0.5)));
    EXPECT_TRUE(torch::allclose(embedding->weight[1], torch::full({4}, 0.5)));
    EXPECT_TRUE(torch::allclose(embedding->weight[2], torch::ones({4})));
  });
}

TEST(SgdParameters, HalfAndBfloat16HaveMastersOf32Bits) {
  for (const auto type : {torch::kHalf, torch::kBFloat16}) {
    run_workers(2, [&](Group& group) {
      torch::Tensor w = torch::ones({4, 4}, type).requires_grad_();
      // Steps of 1e-4 vanish next to 1 in 16 bits; a thousand of them do not.
      Sgd sgd(group, {w}, SgdOptions(1e-4).schedule(Schedule(1.0)));
      for (int step = 0; step < 1000; ++step) {
        w.mutable_grad() = torch::ones({4, 4}, type);
        sgd.step();
      }
      EXPECT_TRUE(
          torch::allclose(w.detach().to(torch::kFloat), torch::full({4, 4}, 0.9), 0.0, 5e-3));
      EXPECT_EQ(sgd.report().tensors[0].type, type == torch::kHalf ? "half" : "bfloat16");
    });
  }
}

TEST(SgdParameters, WhatIsWrittenToThemByHandStays) {
  run_workers(2, [&](Group& group) {
    torch::Tensor half = torch::ones({4, 4}, torch::kHalf).requires_grad_();
    torch::Tensor turned = torch::ones({4, 4}).t().slice(0, 0, 4, 2).detach().requires_grad_();
    Sgd sgd(group, {half, turned}, SgdOptions(0.5).schedule(Schedule(1.0)));
    for (int step = 0; step < 2; ++step) {
      {
        const torch::NoGradGuard no_grad;
        half.fill_(3.0);
        turned.fill_(3.0);
      }
      sgd.zero_grad();
      (half.to(torch::kFloat).sum() + turned.sum()).backward();
      sgd.step();
      EXPECT_TRUE(torch::allclose(half.to(torch::kFloat), torch::full({4, 4}, 2.5)));
      EXPECT_TRUE(torch::allclose(turned, torch::full({2, 4}, 2.5)));
    }
  });
}

TEST(SgdParameters, DoublesAreRefusedByNameOnAllRanks) {
  const auto errors = run_ranks(3, std::chrono::seconds(5), [&](Group& group) {
    torch::Tensor w =
        torch::ones({4, 4}, group.rank() == 1 ? torch::kDouble : torch::kFloat).requires_grad_();
    Sgd sgd(group, {{{{{"layer.weight", w}}}, SgdGroupOptions(0.1)}}, SgdOptions(0.1));
  });
  for (const auto& error : errors) {
    ASSERT_TRUE(error);
    EXPECT_NE(std::string(error->what()).find("'layer.weight'"), std::string::npos)
        << error->what();
    EXPECT_NE(std::string(error->what()).find("Double"), std::string::npos) << error->what();
  }
}

}  // namespace
}  // namespace dgc::test
