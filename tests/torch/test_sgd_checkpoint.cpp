// Training that goes on from a checkpoint as if nothing had happened. The files themselves are
// tested in tests/checkpoint.
#include <fstream>
#include <numeric>

#include "dgc/checkpoint.h"
#include "support/net_with_half.h"
#include "support/processes.h"
#include "support/torch_ranks.h"

namespace dgc::test {
namespace {

using Net = NetWithHalf<torch::kHalf>;

SgdOptions run_options() {
  return SgdOptions(0.05).momentum(0.9).nesterov(true).weight_decay(0.01).schedule(
      Schedule::paper(12));
}

struct Worker {
  explicit Worker(Group& group, SgdOptions options = run_options())
      : net(make()), rank(group.rank()), sgd(group, *net, std::move(options)) {}
  static std::unique_ptr<Net> make() {
    static std::mutex making;
    const std::scoped_lock lock(making);
    torch::manual_seed(3);
    return std::make_unique<Net>();
  }
  void train(int from, int to) {
    for (int step = from; step < to; ++step) {
      sgd.param_groups()[0].options().set_lr(0.05 / (1 + step));
      sgd.zero_grad();
      (net->forward(batch(step, rank, 20)) - batch(step, rank + 100, 5)).square().mean().backward();
      sgd.step();
    }
  }
  Tensors everything() const {
    Tensors all = copies_of(net->parameters());
    for (const auto& b : net->buffers()) all.push_back(b.clone());
    for (std::size_t t = 0; t < sgd.state_of_rank().tensors().size(); ++t) {
      for (const auto array : {sgd.state_of_rank().velocity(t), sgd.state_of_rank().residual(t)}) {
        all.push_back(torch::tensor(std::vector<float>(array.begin(), array.end())));
      }
    }
    return all;
  }
  std::unique_ptr<Net> net;
  int rank;
  Sgd sgd;
};

TEST(SgdCheckpoint, ResumesBitForBit) {
  for (const bool own_disks : {false, true}) {
    const TemporaryFolder folder;
    const auto place = [&](const Group& group) {
      return own_disks ? folder.path() / std::to_string(group.rank()) : folder.path();
    };
    std::vector<Tensors> expected(3);
    run_workers(3, [&](Group& group) {
      Worker worker(group);
      worker.train(0, 40);
      expected[static_cast<std::size_t>(group.rank())] = worker.everything();
    });
    run_workers(3, [&](Group& group) {
      Worker worker(group);
      EXPECT_FALSE(load_checkpoint(place(group), worker.sgd));
      worker.train(0, 17);
      const auto info = save_checkpoint(place(group), worker.sgd, "17 batches");
      EXPECT_EQ(info.step, 17u);
      worker.train(17, 23);  // lost
    });
    run_workers(3, [&](Group& group) {
      Worker worker(group);
      worker.train(0, 2);
      const auto info = load_checkpoint(place(group), worker.sgd);
      ASSERT_TRUE(info);
      EXPECT_EQ(info->step, 17u);
      EXPECT_EQ(info->user, "17 batches");
      EXPECT_EQ(info->workers, 3);
      EXPECT_EQ(worker.sgd.param_groups()[0].options().get_lr(), 0.05 / 17);
      worker.train(17, 40);
      EXPECT_TRUE(identical(worker.everything(), expected[static_cast<std::size_t>(group.rank())]));
    });
  }
}

TEST(SgdCheckpoint, RestoresTheRandomState) {
  const TemporaryFolder folder;
  torch::Tensor expected;
  run_workers(1, [&](Group& group) {
    Worker worker(group);
    worker.train(0, 2);
    save_checkpoint(folder.path(), worker.sgd);
    expected = torch::rand({8});
    load_checkpoint(folder.path(), worker.sgd);
    EXPECT_TRUE(torch::equal(torch::rand({8}), expected));
  });
}

TEST(SgdCheckpoint, GivesEachRankItsOwnBack) {
  const TemporaryFolder folder;
  run_workers(3, [&](Group& group) {
    Worker worker(group);
    const torch::Tensor mine = torch::full({group.rank() + 1}, group.rank());
    save_checkpoint(folder.path(), worker.sgd, "", 2, mine);
    const auto info = load_checkpoint(folder.path(), worker.sgd);
    ASSERT_TRUE(info && info->mine.defined());
    EXPECT_TRUE(torch::equal(info->mine, mine));
  });
  run_workers(2, [&](Group& group) {
    Worker worker(group);
    const auto info = load_checkpoint(folder.path(), worker.sgd);
    ASSERT_TRUE(info);
    EXPECT_FALSE(info->mine.defined()) << "nobody's, with another number of workers";
  });
}

TEST(SgdCheckpoint, WithoutMomentumCorrectionResumesBitForBit) {
  const TemporaryFolder folder;
  run_workers(2, [&](Group& group) {
    Worker worker(group, run_options().momentum_correction(false));
    worker.train(0, 6);
    save_checkpoint(folder.path(), worker.sgd);
    worker.train(6, 10);
    const Tensors expected = worker.everything();
    load_checkpoint(folder.path(), worker.sgd);
    worker.train(6, 10);
    EXPECT_TRUE(identical(worker.everything(), expected));
  });
}

TEST(SgdCheckpoint, OtherNumbersOfWorkersKeepTheSumsOfUAndV) {
  for (const int workers : {1, 2, 5}) {
    const TemporaryFolder folder;
    std::mutex adding;
    std::vector<torch::Tensor> before;
    std::vector<torch::Tensor> after;
    Tensors parameters;
    const auto add = [&adding](std::vector<torch::Tensor>& sums, const Worker& worker) {
      const std::scoped_lock lock(adding);
      Tensors all = worker.everything();
      all.erase(all.begin(),
                all.begin() + static_cast<std::ptrdiff_t>(worker.net->parameters().size() +
                                                          worker.net->buffers().size()));
      sums.resize(all.size());
      for (std::size_t i = 0; i < all.size(); ++i) {
        const auto wide = all[i].to(torch::kDouble);
        sums[i] = sums[i].defined() ? sums[i] + wide : wide;
      }
    };
    run_workers(3, [&](Group& group) {
      Worker worker(group);
      worker.train(0, 20);
      save_checkpoint(folder.path(), worker.sgd);
      add(before, worker);
      if (group.rank() == 0) parameters = copies_of(worker.net->parameters());
    });
    run_workers(workers, [&](Group& group) {
      Worker worker(group);
      ASSERT_TRUE(load_checkpoint(folder.path(), worker.sgd));
      EXPECT_EQ(worker.sgd.steps(), 20u);
      EXPECT_TRUE(identical(copies_of(worker.net->parameters()), parameters));
      add(after, worker);
      worker.train(20, 23);
    });
    for (std::size_t i = 0; i < before.size(); ++i) {
      // Rounding is relative to the parts, which may cancel.
      const double largest = before[i].abs().max().item<double>();
      EXPECT_TRUE(torch::allclose(after[i], before[i], 1e-6, 1e-6 * largest))
          << workers << " " << i;
    }
  }
}

/// A checkpoint of two workers, after three steps.
void save_two_workers(const TemporaryFolder& folder) {
  run_workers(2, [&](Group& group) {
    Worker worker(group);
    worker.train(0, 3);
    save_checkpoint(folder.path(), worker.sgd);
  });
}

TEST(SgdCheckpoint, OfAnotherModelIsRefusedAndNothingChanges) {
  const TemporaryFolder folder;
  save_two_workers(folder);
  const auto expect_refusal = [&](const std::string& name, std::vector<std::int64_t> shape,
                                  ErrorCode code) {
    run_workers(2, [&](Group& group) {
      torch::Tensor w = torch::ones(shape).requires_grad_();
      Sgd sgd(group, {{{{{name, w}}}, SgdGroupOptions(0.1)}}, run_options());
      try {
        load_checkpoint(folder.path(), sgd);
        ADD_FAILURE() << "accepted";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), code) << error.what();
        EXPECT_NE(std::string(error.what()).find("model.pt"), std::string::npos) << error.what();
        EXPECT_NE(std::string(error.what()).find(name), std::string::npos) << error.what();
      }
      EXPECT_TRUE(torch::equal(w, torch::ones(shape)));
      EXPECT_EQ(sgd.steps(), 0u);
      w.sum().backward();
      sgd.step();  // the group is still alive
    });
  };
  expect_refusal("other", {4, 4}, ErrorCode::state_mismatch);
  expect_refusal("in.weight", {40, 21}, ErrorCode::shape_mismatch);
}

TEST(SgdCheckpoint, DamageIsRefusedWithTheFile) {
  const TemporaryFolder folder;
  save_two_workers(folder);
  for (const char* file : {"model.pt", "optimizer.pt", "rank-00001.state", "manifest.json"}) {
    const auto path = folder.path() / "step-000000000003" / file;
    std::fstream stream(path, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(100);
    const char old = static_cast<char>(stream.get());
    const auto write = [&](char c) {
      stream.seekp(100);
      stream.put(c);
      stream.flush();
    };
    write(static_cast<char>(old ^ 4));
    run_workers(2, [&](Group& group) {
      Worker worker(group);
      const Tensors before = worker.everything();
      try {
        load_checkpoint(folder.path(), worker.sgd);
        ADD_FAILURE() << file << " accepted";
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find(file), std::string::npos) << error.what();
      }
      EXPECT_TRUE(identical(worker.everything(), before));
    });
    write(old);
  }
  run_workers(2, [&](Group& group) {
    Worker worker(group);
    EXPECT_TRUE(load_checkpoint(folder.path(), worker.sgd));
  });
}

TEST(SgdCheckpoint, InTheMiddleOfAStepIsRefused) {
  const TemporaryFolder folder;
  run_workers(2, [&](Group& group) {
    torch::Tensor w = torch::ones({4, 4}).requires_grad_();
    Sgd sgd(group, {w}, SgdOptions(0.1).overlap(false));
    w.sum().backward();
    EXPECT_THROW(save_checkpoint(folder.path(), sgd), Error);
    EXPECT_THROW(load_checkpoint(folder.path(), sgd), Error);
    sgd.step();
    EXPECT_NO_THROW(save_checkpoint(folder.path(), sgd));
  });
}

}  // namespace
}  // namespace dgc::test
