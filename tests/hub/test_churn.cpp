// Members and the hub are killed, cut off, stalled, healed and joined at random, at moments that
// the seed decides. Whatever happens, the promises of toy.h hold at the end. DGC_CHURN_SEEDS says
// how many seeds, DGC_CHURN_SEED names one.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>

#include "support/helpers.h"
#include "toy.h"

namespace dgc {
namespace {

using test::Pace;
using test::Toy;
using test::ToyPlan;

class Churn {
 public:
  explicit Churn(std::uint32_t seed) : random_(seed), toy_(plan()) {}

  void run() {
    for (int i = 0; i < 2; ++i) join_new();
    for (int event = 0; event < 50; ++event) {
      // From within a round to many rounds.
      toy_.run(std::pow(10.0, uniform(-3.0, 0.5)));
      if (testing::Test::HasFatalFailure()) return;
      something_happens();
    }
    if (toy_.local->hub() == nullptr) toy_.local->start_hub();
    // Who was told to leave does so first, unless it waits for a quorum.
    const auto leaves = [&](const auto& name) { return toy_.local->member(name) != nullptr; };
    toy_.run_until(100.0, [&] { return std::ranges::none_of(leaving_, leaves); });
    for (const std::string& name : leaving_) toy_.local->kill(name);
    for (const std::string& name : names_) {
      if (toy_.local->member(name) == nullptr) toy_.join(name, pace());
    }
    ASSERT_TRUE(toy_.finish());
    toy_.check();
  }

 private:
  double uniform(double from, double to) {
    return std::uniform_real_distribution<double>(from, to)(random_);
  }
  std::size_t below(std::size_t n) {
    return std::uniform_int_distribution<std::size_t>(0, n - 1)(random_);
  }
  bool chance(double p) { return uniform(0.0, 1.0) < p; }

  ToyPlan plan() {
    ToyPlan plan{.epochs = chance(0.2) ? 2.0 : 20.0, .lr = 0.01};
    plan.terms.down = chance(0.5) ? hub::Down::select : hub::Down::forward;
    plan.terms.momentum = chance(0.5) ? 0.6f : 0.0f;
    plan.terms.momentum_correction = momentum_corrections()[below(3)];
    if (plan.terms.down == hub::Down::forward &&
        plan.terms.momentum_correction == MomentumCorrection::global) {
      plan.terms.momentum_correction = MomentumCorrection::local;
    }
    plan.terms.values = chance(0.5) ? ValueType::fp16 : ValueType::fp32;
    plan.terms.save_every = static_cast<int>(1 + below(8));
    plan.rules.quorum = chance(0.2) ? 2 : 0;
    plan.rules.deadline = chance(0.3) ? 0.05 : 0.0;
    plan.rules.longest = 2.0;
    plan.rules.oldest = below(4);
    plan.lost_after = chance(0.5) ? 5.0 : 40.0;
    plan.snapshot_every = 1 + below(20);
    plan.evaluate_every = 1 + below(20);
    plan.norm_bound = chance(0.2) ? 1.5 : 0.0;
    plan.buffers = chance(0.3);
    plan.private_data = chance(0.15);
    if (plan.private_data) plan.rounds = 300;
    return plan;
  }
  Pace pace() {
    return {.seconds_each = chance(0.2) ? 0.01 : uniform(0.0005, 0.002),
            .delay = chance(0.2) ? 0.1 : 0.002};
  }

  void join_new() {
    if (names_.size() == 8 || toy_.local->hub() == nullptr) return;
    names_.push_back(fmt::format("m{}", names_.size()));
    toy_.join(names_.back(), pace());
  }

  void something_happens() {
    const std::string& name = names_[below(names_.size())];
    hub::LocalHub& local = *toy_.local;
    const bool runs = local.member(name) != nullptr;
    switch (below(10)) {
      case 0:
        return join_new();
      case 1:
        if (local.hub() != nullptr) return local.kill_hub();
        [[fallthrough]];
      case 2:
        if (local.hub() == nullptr) local.start_hub();
        return;
      case 3:
        if (!runs) return;
        leaving_.insert(name);
        return local.leave(name);
      case 4:
        return local.cut(name, std::pow(10.0, uniform(-2.5, 1.7)));
      case 5:
        return local.stall(name, std::pow(10.0, uniform(-2.5, 1.3)));
      case 6:
        return;
      default:
        leaving_.erase(name);
        if (runs) return local.kill(name);
        toy_.join(name, pace());
    }
  }

  std::mt19937 random_;
  std::vector<std::string> names_;
  std::set<std::string> leaving_;
  Toy toy_;
};

TEST(HubChurn, PromisesHoldWhateverHappens) {
  const auto number = [](const char* name, int usual) {
    const char* const text = std::getenv(name);
    return static_cast<std::uint32_t>(text != nullptr ? std::atoi(text) : usual);
  };
  const bool one = std::getenv("DGC_CHURN_SEED") != nullptr;
  const std::uint32_t first = number("DGC_CHURN_SEED", 1);
  const std::uint32_t count = one ? 1 : number("DGC_CHURN_SEEDS", test::repeats(60, 10));
  for (std::uint32_t seed = first; seed < first + count; ++seed) {
    SCOPED_TRACE(fmt::format("DGC_CHURN_SEED={}", seed));
    try {
      Churn(seed).run();
    } catch (const std::exception& error) {
      FAIL() << error.what();
    }
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace dgc
