// At ratio 1 nothing is masked and the whole of it is momentum SGD on the averaged gradient: every
// variant against torch::optim::SGD in one process.
#include "support/torch_ranks.h"

namespace dgc::test {
namespace {

constexpr int kWorkers = 4;

struct Variant {
  std::string name;
  double momentum = 0.0;
  bool nesterov = false;
  double weight_decay = 0.0;
  double clip_norm = 0.0;
  Algorithm algorithm = Algorithm::automatic;
  bool overlap = true;
  MomentumCorrection correction = MomentumCorrection::local;
};

/// Ways to get it wrong that the comparison has to notice.
enum class Mistake { none, momentum_twice, no_root_of_workers, decay_in_gradient };

Tensors initial_parameters() {
  torch::manual_seed(1);
  return {torch::randn({20, 30}), torch::randn({30}), torch::randn({4, 3, 3, 3}), torch::randn({})};
}

/// gradients[step][rank][parameter]
std::vector<std::vector<Tensors>> record_gradients(int steps) {
  const Tensors shapes = initial_parameters();
  torch::manual_seed(2);
  std::vector<std::vector<Tensors>> all(static_cast<std::size_t>(steps));
  for (auto& step : all) {
    for (int r = 0; r < kWorkers; ++r) {
      Tensors& gradients = step.emplace_back();
      for (const auto& p : shapes) gradients.push_back(torch::randn(p.sizes()));
    }
  }
  return all;
}

double norm_of(const Tensors& tensors) {
  double squares = 0.0;
  for (const auto& t : tensors) squares += t.to(torch::kDouble).square().sum().item<double>();
  return std::sqrt(squares);
}

/// One process, torch::optim::SGD, on gradients that are clipped per shard and averaged here.
Tensors oracle(const Variant& variant, const std::vector<std::vector<Tensors>>& recorded, double lr,
               Mistake mistake, int* clipped) {
  Tensors w = initial_parameters();
  const bool by_hand = mistake == Mistake::decay_in_gradient;
  torch::optim::SGD sgd(w, torch::optim::SGDOptions(lr)
                               .momentum(variant.momentum)
                               .nesterov(variant.nesterov)
                               .weight_decay(by_hand ? 0.0 : variant.weight_decay));
  Tensors twice;
  for (const auto& p : w) twice.push_back(torch::zeros_like(p));
  for (const auto& step : recorded) {
    Tensors mean;
    for (const auto& p : w) mean.push_back(torch::zeros_like(p, torch::kDouble));
    for (const Tensors& shard : step) {
      Tensors scaled;
      for (std::size_t i = 0; i < shard.size(); ++i) {
        torch::Tensor g = shard[i].to(torch::kDouble);
        if (by_hand) g = g + variant.weight_decay * w[i];
        scaled.push_back(g / kWorkers);
      }
      double factor = 1.0;
      if (variant.clip_norm > 0.0) {
        const double threshold = mistake == Mistake::no_root_of_workers
                                     ? variant.clip_norm
                                     : variant.clip_norm / std::sqrt(kWorkers);
        const double norm = norm_of(scaled);
        if (norm > threshold) {
          factor = threshold / norm;
          ++*clipped;
        }
      }
      for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += scaled[i] * factor;
    }
    for (std::size_t i = 0; i < w.size(); ++i) {
      if (mistake == Mistake::momentum_twice) {
        twice[i] = variant.momentum * twice[i] + mean[i].to(torch::kFloat);
        w[i].mutable_grad() = twice[i].clone();
      } else {
        w[i].mutable_grad() = mean[i].to(torch::kFloat);
      }
    }
    sgd.step();
  }
  return w;
}

/// Four workers with dgc::Sgd; all have to end with the same bits.
Tensors distributed(const Variant& variant, const std::vector<std::vector<Tensors>>& recorded,
                    double lr, int* clipped) {
  std::vector<Tensors> result(kWorkers);
  std::vector<int> fired(kWorkers);
  const Tensors start = initial_parameters();  // not on the threads, which share a generator
  run_workers(kWorkers, [&](Group& group) {
    const auto rank = static_cast<std::size_t>(group.rank());
    Tensors w = copies_of(start);
    for (auto& p : w) {
      if (rank != 0) p.zero_();  // rank 0's are broadcast
      p.requires_grad_();
    }
    Sgd sgd(group, w,
            SgdOptions(lr)
                .momentum(variant.momentum)
                .nesterov(variant.nesterov)
                .weight_decay(variant.weight_decay)
                .clip_norm(variant.clip_norm)
                .algorithm(variant.algorithm)
                .overlap(variant.overlap)
                .momentum_correction(variant.correction)
                .schedule(Schedule(1.0))
                .bucket_bytes(1000));
    for (const auto& step : recorded) {
      for (std::size_t i = 0; i < w.size(); ++i) w[i].mutable_grad() = step[rank][i].clone();
      sgd.step();
      fired[rank] += sgd.stats().clip_factor < 1.0;
    }
    result[rank] = copies_of(w);
  });
  for (const Tensors& other : result) EXPECT_TRUE(identical(other, result[0]));
  *clipped = fired[0];
  return result[0];
}

class SgdEquivalence : public testing::TestWithParam<Variant> {};

TEST_P(SgdEquivalence, EqualsTorchSgdOnTheAveragedGradient) {
  const Variant& variant = GetParam();
  const auto recorded = record_gradients(200);
  int clipped_there = 0;
  int clipped_here = 0;
  const Tensors expected = oracle(variant, recorded, 0.01, Mistake::none, &clipped_there);
  const Tensors actual = distributed(variant, recorded, 0.01, &clipped_here);
  EXPECT_LT(relative_difference(actual, expected), 1e-5);
  if (variant.clip_norm > 0.0) {
    EXPECT_GT(clipped_there, 0);
    EXPECT_GT(clipped_here, 0);
    EXPECT_LT(clipped_here, 200) << "clipping should not fire at every step of this test";
  }
}

// The norm of g/N is about 6.8 (739 entries of size 1, over 4): clips at about half of the steps.
constexpr double kClip = 2.0 * 6.8;

INSTANTIATE_TEST_SUITE_P(
    Variants, SgdEquivalence,
    testing::Values(Variant{"Plain"}, Variant{"Decay", 0.0, false, 0.05}, Variant{"HeavyBall", 0.9},
                    Variant{"HeavyBallDecay", 0.9, false, 0.05},
                    Variant{"HeavyBallClip", 0.9, false, 0.0, kClip},
                    Variant{"HeavyBallDecayClip", 0.9, false, 0.05, kClip},
                    Variant{"Nesterov", 0.9, true}, Variant{"NesterovDecay", 0.9, true, 0.05},
                    Variant{"NesterovDecayClip", 0.9, true, 0.05, kClip},
                    Variant{"PlainClip", 0.0, false, 0.0, kClip},
                    Variant{"NoOverlap", 0.9, true, 0.05, 0.0, Algorithm::automatic, false},
                    Variant{"Allgather", 0.9, false, 0.05, 0.0, Algorithm::allgather},
                    Variant{"Owner", 0.9, false, 0.05, 0.0, Algorithm::owner},
                    Variant{"Dense", 0.9, false, 0.05, 0.0, Algorithm::dense},
                    Variant{"Hierarchical", 0.9, true, 0.05, 0.0, Algorithm::hierarchical},
                    Variant{"Uncorrected", 0.9, false, 0.05, kClip, Algorithm::automatic, true,
                            MomentumCorrection::off},
                    Variant{"UncorrectedNesterov", 0.9, true, 0.05, 0.0, Algorithm::dense, true,
                            MomentumCorrection::off},
                    Variant{"Global", 0.9, false, 0.0, 0.0, Algorithm::automatic, true,
                            MomentumCorrection::global},
                    Variant{"GlobalDecayClip", 0.9, false, 0.05, kClip, Algorithm::allgather, true,
                            MomentumCorrection::global},
                    Variant{"GlobalNesterovDecayClip", 0.9, true, 0.05, kClip, Algorithm::allgather,
                            true, MomentumCorrection::global},
                    Variant{"GlobalOwner", 0.9, false, 0.05, 0.0, Algorithm::owner, true,
                            MomentumCorrection::global},
                    Variant{"GlobalOwnerNesterov", 0.9, true, 0.05, kClip, Algorithm::owner, true,
                            MomentumCorrection::global},
                    Variant{"GlobalDense", 0.9, true, 0.05, 0.0, Algorithm::dense, true,
                            MomentumCorrection::global},
                    Variant{"GlobalHierarchical", 0.9, true, 0.05, 0.0, Algorithm::hierarchical,
                            true, MomentumCorrection::global}),
    [](const auto& test) { return test.param.name; });

TEST(SgdEquivalenceMistake, IsNoticed) {
  const auto recorded = record_gradients(50);
  const Variant variant{"all", 0.9, false, 0.05, kClip};
  int clipped = 0;
  const Tensors actual = distributed(variant, recorded, 0.01, &clipped);
  for (const Mistake mistake :
       {Mistake::momentum_twice, Mistake::no_root_of_workers, Mistake::decay_in_gradient}) {
    const Tensors wrong = oracle(variant, recorded, 0.01, mistake, &clipped);
    EXPECT_GT(relative_difference(actual, wrong), 1e-4) << static_cast<int>(mistake);
  }
  const Tensors right = oracle(variant, recorded, 0.01, Mistake::none, &clipped);
  EXPECT_LT(relative_difference(actual, right), 1e-5);
}

// Gradient dropping as the paper's eq. 5 has it: v accumulates gradients, the largest entry of v is
// sent, and momentum follows the sum of what was sent.
TEST(SgdWithoutCorrection, AppliesMomentumToWhatWasSent) {
  constexpr int kElements = 8;
  torch::manual_seed(3);
  const auto gradients = torch::randn({30, kElements});
  std::vector<double> v(kElements), momentum(kElements), w(kElements);
  for (int step = 0; step < 30; ++step) {
    for (int i = 0; i < kElements; ++i) v[i] += gradients[step][i].item<double>();
    const auto largest = std::max_element(
        v.begin(), v.end(), [](double a, double b) { return std::abs(a) < std::abs(b); });
    for (int i = 0; i < kElements; ++i) {
      const bool sent = &v[i] == &*largest;
      momentum[i] = 0.9 * momentum[i] + (sent ? v[i] : 0.0);
      w[i] -= 0.1 * momentum[i];
    }
    *largest = 0.0;
  }
  run_workers(1, [&](Group& group) {
    const torch::Tensor p = torch::zeros({2, kElements / 2}).requires_grad_();
    Sgd sgd(group, std::vector<torch::Tensor>{p},
            SgdOptions(0.1)
                .momentum(0.9)
                .momentum_correction(false)
                .schedule(Schedule(0.1))
                .values(ValueType::fp32));
    for (int step = 0; step < 30; ++step) {
      p.mutable_grad() = gradients[step].view({2, kElements / 2}).clone();
      sgd.step();
      EXPECT_EQ(sgd.stats().entries, 1u);
    }
    const auto actual = p.detach().flatten();
    for (int i = 0; i < kElements; ++i) EXPECT_NEAR(actual[i].item<double>(), w[i], 1e-5);
  });
}

/// A whole batch in one process against its shards on four workers, through backward and hooks.
template <typename Model, typename Loss>
void train_end_to_end(const Loss& loss_of_shard) {
  torch::set_num_threads(1);
  const auto options = [] {
    return SgdOptions(0.05).momentum(0.9).nesterov(true).weight_decay(1e-3).schedule(Schedule(1.0));
  };
  torch::manual_seed(11);
  Model single;
  const Tensors start = copies_of(single.parameters());
  torch::optim::SGD sgd(
      single.parameters(),
      torch::optim::SGDOptions(0.05).momentum(0.9).nesterov(true).weight_decay(1e-3));
  for (int step = 0; step < 20; ++step) {
    sgd.zero_grad();
    loss_of_shard(single, step, 0, 1).backward();
    sgd.step();
  }
  std::vector<Tensors> result(kWorkers);
  std::mutex making;  // the generator of initial weights belongs to the process
  run_workers(kWorkers, [&](Group& group) {
    std::unique_ptr<Model> model;
    {
      const std::scoped_lock lock(making);
      model = std::make_unique<Model>();
    }
    if (group.rank() == 0) {
      const torch::NoGradGuard no_grad;
      Tensors parameters = model->parameters();
      for (std::size_t i = 0; i < start.size(); ++i) parameters[i].copy_(start[i]);
    }
    Sgd optimizer(group, *model, options().bucket_bytes(4096));
    for (int step = 0; step < 20; ++step) {
      optimizer.zero_grad();
      loss_of_shard(*model, step, group.rank(), kWorkers).backward();
      optimizer.step();
    }
    result[static_cast<std::size_t>(group.rank())] = copies_of(model->parameters());
  });
  for (const Tensors& other : result) EXPECT_TRUE(identical(other, result[0]));
  EXPECT_GT(relative_difference(result[0], start), 1e-2) << "nothing was learned";
  EXPECT_LT(relative_difference(result[0], single.parameters()), 1e-4);
}

TEST(SgdEndToEnd, Cnn) {
  torch::manual_seed(7);
  const auto images = torch::randn({20, 16, 1, 12, 12});
  const auto labels = torch::randint(10, {20, 16}, torch::kLong);
  train_end_to_end<SmallCnn>([&](SmallCnn& model, int step, int rank, int workers) {
    const auto x = images[step].chunk(workers)[static_cast<std::size_t>(rank)];
    const auto y = labels[step].chunk(workers)[static_cast<std::size_t>(rank)];
    return torch::nn::functional::cross_entropy(model.forward(x), y);
  });
}

TEST(SgdEndToEnd, LstmWithTiedWeights) {
  torch::manual_seed(8);
  const auto words = torch::randint(50, {20, 8, 11}, torch::kLong);
  train_end_to_end<SmallLstm>([&](SmallLstm& model, int step, int rank, int workers) {
    const auto text = words[step].chunk(workers)[static_cast<std::size_t>(rank)];
    return torch::nn::functional::cross_entropy(model.forward(text.slice(1, 0, 10)),
                                                text.slice(1, 1, 11).flatten());
  });
}

}  // namespace
}  // namespace dgc::test
