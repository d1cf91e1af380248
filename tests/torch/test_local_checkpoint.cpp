// Local steps that go on from a checkpoint as if nothing had happened.
#include "dgc/checkpoint.h"
#include "support/inner_optimizers.h"
#include "support/net_with_half.h"
#include "support/processes.h"
#include "support/torch_ranks.h"

namespace dgc::test::local_checkpoints {
namespace {

using Net = NetWithHalf<torch::kBFloat16>;

constexpr int kLocalSteps = 3;

LocalStepsOptions sparse_options() {
  return LocalStepsOptions(kLocalSteps).schedule(Schedule(0.05)).values(ValueType::table2);
}

struct Worker {
  Worker(Group& group, const InnerOptimizer& optimizer, LocalStepsOptions options)
      : net(make()),
        rank(group.rank()),
        inner(optimizer.make(net->parameters())),
        local(group, *net, *inner, std::move(options)) {}
  static std::unique_ptr<Net> make() {
    static std::mutex making;
    const std::scoped_lock lock(making);
    torch::manual_seed(3);
    return std::make_unique<Net>();
  }
  void train(int from, int to) {
    for (int step = from; step < to; ++step) {
      inner->param_groups()[0].options().set_lr(0.05 / (1 + step));
      inner->zero_grad();
      (net->forward(batch(step, rank, 20)) - batch(step, rank + 100, 5)).square().mean().backward();
      local.step();
    }
  }
  Tensors everything() const {
    Tensors all = copies_of(net->parameters());
    for (const auto& b : net->buffers()) all.push_back(b.clone());
    for (std::size_t t = 0; t < local.state_of_rank().tensors().size(); ++t) {
      const auto v = local.state_of_rank().residual(t);
      all.push_back(torch::tensor(std::vector<float>(v.begin(), v.end())));
    }
    return all;
  }
  std::unique_ptr<Net> net;
  int rank;
  std::unique_ptr<torch::optim::Optimizer> inner;
  LocalSteps local;
};

class LocalCheckpoint : public testing::TestWithParam<InnerOptimizer> {};
INSTANTIATE_TEST_SUITE_P(Each, LocalCheckpoint, testing::ValuesIn(inner_optimizers()),
                         [](const auto& one) { return std::string(one.param.name); });

TEST_P(LocalCheckpoint, ResumesBitForBit) {
  for (const LocalStepsOptions& options :
       {sparse_options(), LocalStepsOptions::diloco(kLocalSteps)}) {
    const TemporaryFolder folder;
    std::vector<Tensors> expected(2);
    run_workers(2, [&](Group& group) {
      Worker worker(group, GetParam(), options);
      EXPECT_FALSE(load_checkpoint(folder.path(), worker.local));
      worker.train(0, 4 * kLocalSteps);
      worker.local.set_outer_lr(0.5);
      const auto info = save_checkpoint(folder.path(), worker.local, "4 rounds", 2,
                                        torch::full({1}, group.rank()));
      EXPECT_EQ(info.step, 4u);
      worker.train(4 * kLocalSteps, 8 * kLocalSteps);
      expected[static_cast<std::size_t>(group.rank())] = worker.everything();
    });
    run_workers(2, [&](Group& group) {
      Worker worker(group, GetParam(), options);
      worker.train(0, kLocalSteps + 1);  // in the middle of a round: it is forgotten
      const auto info = load_checkpoint(folder.path(), worker.local);
      ASSERT_TRUE(info);
      EXPECT_EQ(info->step, 4u);
      EXPECT_EQ(info->user, "4 rounds");
      EXPECT_EQ(info->mine.item<float>(), static_cast<float>(group.rank()));
      EXPECT_EQ(worker.local.outer_lr(), 0.5);
      EXPECT_EQ(worker.local.local_step(), 0);
      EXPECT_EQ(worker.local.rounds(), 4u);
      EXPECT_EQ(worker.inner->param_groups()[0].options().get_lr(), 0.05 / (4 * kLocalSteps));
      worker.train(4 * kLocalSteps, 8 * kLocalSteps);
      EXPECT_TRUE(identical(worker.everything(), expected[static_cast<std::size_t>(group.rank())]));
    });
  }
}

TEST(LocalCheckpoints, OtherNumbersOfWorkersKeepTheSumOfTheResiduals) {
  const InnerOptimizer adam = inner_optimizers()[3];
  for (const int workers : {1, 3}) {
    const TemporaryFolder folder;
    std::mutex adding;
    torch::Tensor before = torch::zeros({40, 20}, torch::kDouble);
    torch::Tensor after = before.clone();
    Tensors parameters;
    const auto add = [&](torch::Tensor& sum, const Worker& worker) {
      const std::scoped_lock lock(adding);
      const auto v = worker.local.state_of_rank().residual(1);  // "half" is the first
      sum += torch::tensor(std::vector<float>(v.begin(), v.end())).view({40, 20});
    };
    run_workers(2, [&](Group& group) {
      Worker worker(group, adam, sparse_options());
      worker.train(0, 2 * kLocalSteps);
      ASSERT_EQ(worker.local.state_of_rank().tensors()[1].name, "in.weight");
      save_checkpoint(folder.path(), worker.local);
      add(before, worker);
      if (group.rank() == 0) parameters = copies_of(worker.net->parameters());
    });
    run_workers(workers, [&](Group& group) {
      Worker worker(group, adam, sparse_options());
      ASSERT_TRUE(load_checkpoint(folder.path(), worker.local));
      EXPECT_TRUE(identical(copies_of(worker.net->parameters()), parameters));
      EXPECT_EQ(worker.inner->state().size(), worker.net->parameters().size())
          << "also a new rank goes on with moments";
      add(after, worker);
      worker.train(2 * kLocalSteps, 3 * kLocalSteps);
    });
    EXPECT_TRUE(torch::allclose(after, before, 1e-6, 1e-9)) << workers;
  }
}

TEST(LocalCheckpoints, WhatDoesNotFitIsRefusedAndNothingChanges) {
  const TemporaryFolder folder;
  const auto all = inner_optimizers();
  run_workers(1, [&](Group& group) {
    Worker worker(group, all[3], sparse_options());
    worker.train(0, 1);
    EXPECT_THROW(save_checkpoint(folder.path(), worker.local), Error) << "between two rounds only";
    worker.local.synchronize();
    save_checkpoint(folder.path(), worker.local);
  });
  run_workers(1, [&](Group& group) {
    // Another model.
    torch::Tensor w = torch::ones({4, 4}).requires_grad_();
    torch::optim::SGD inner({w}, torch::optim::SGDOptions(1.0));
    LocalSteps local(group, {{{"other", w}}}, inner, sparse_options());
    try {
      load_checkpoint(folder.path(), local);
      ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::state_mismatch) << error.what();
      EXPECT_NE(std::string(error.what()).find("other"), std::string::npos) << error.what();
    }
    EXPECT_EQ(local.rounds(), 0u);
  });
  // A checkpoint of dgc::Sgd on the same model has no inner optimizer.
  const TemporaryFolder other;
  run_workers(1, [&](Group& group) {
    const auto net = Worker::make();
    Sgd sgd(group, *net, SgdOptions(0.1));
    save_checkpoint(other.path(), sgd);
  });
  run_workers(1, [&](Group& group) {
    Worker worker(group, all[3], sparse_options());
    const Tensors before = worker.everything();
    EXPECT_THROW(load_checkpoint(other.path(), worker.local), Error);
    EXPECT_TRUE(identical(worker.everything(), before));
  });
}

}  // namespace
}  // namespace dgc::test::local_checkpoints
