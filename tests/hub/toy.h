// A run on a LocalHub that learns something small, and counts every example.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "base/temporary_folder.h"
#include "hub/local_hub.h"

namespace dgc::test {

using hub::Contribution;
using hub::LocalHub;
using hub::Member;

inline const std::vector<TensorSpec> kToyModel = {TensorSpec::of("w", {16, 25}),
                                                  TensorSpec::of("b", {7})};
inline constexpr std::size_t kToySize = 16 * 25 + 7;

struct ToyPlan {
  std::int64_t positions = 960, batch = 32;
  double epochs = 4.0, lr = 0.05, ratio = 0.05;
  hub::Terms terms = {.momentum = 0.0f, .values = ValueType::fp32, .save_every = 4};
  hub::RoundRules rules = {};
  double norm_bound = 0.0, lost_after = 30.0;
  std::uint64_t rounds = 0;
};

/// Each example pulls the parameters towards a point of its own; together they pull towards their
/// mean.
class Toy {
 public:
  explicit Toy(const ToyPlan& plan) : plan_(plan) {
    LocalHub::Options options;
    options.hub.rules = plan.rules;
    options.hub.terms = plan.terms;
    options.hub.settings = "{}";
    options.hub.norm_bound = plan.norm_bound;
    options.hub.lost_after = plan.lost_after;
    options.plan.epochs = plan.epochs;
    options.plan.rounds = plan.rounds;
    options.plan.batch = plan.batch;
    options.plan.snapshot_every = 10;
    options.plan.pace = [plan](const auto&) {
      return hub::HubPlan::Pace{.lr = plan.lr, .inner_lr = 0.0, .ratio = plan.ratio};
    };
    options.model = kToyModel;
    options.positions = plan.positions;
    options.watcher.committed = [this](const hub::CommitLine& line) { lines.push_back(line); };
    local.emplace(folder_.path(), std::move(options));
  }

  /// An example's point.
  static float pull(std::int64_t position, std::size_t i) {
    const auto mixed =
        static_cast<std::uint32_t>(position * 2654435761 + static_cast<std::int64_t>(i) * 40503);
    return static_cast<float>(i % 11) / 5.0f - 1.0f +
           (static_cast<float>((mixed >> 8) & 0xffff) / 65536.0f - 0.5f);
  }

  LocalHub::Worker worker(double seconds_each = 0.001) {
    LocalHub::Worker worker;
    worker.seconds_each = seconds_each;
    worker.begin = [](Member& member) {
      for (const auto& span : member.replica().parameters()) {
        std::fill(span.begin(), span.end(), 0.5f);
      }
    };
    auto gradient = std::make_shared<std::vector<float>>(kToySize);
    worker.compute = [gradient](Member& member) {
      const hub::Lease& lease = member.lease();
      std::fill(gradient->begin(), gradient->end(), 0.0f);
      const auto parameters = member.replica().parameters();
      double loss = 0.0;
      for (std::int64_t p = lease.first; p < lease.first + lease.count; ++p) {
        std::size_t at = 0;
        for (const auto& span : parameters) {
          for (const float w : span) {
            const float difference = w - pull(p, at);
            (*gradient)[at] += difference / static_cast<float>(lease.count);
            loss += static_cast<double>(difference) * difference / static_cast<double>(lease.count);
            ++at;
          }
        }
      }
      Contribution contribution{.examples = static_cast<std::uint64_t>(lease.count), .loss = loss};
      std::size_t at = 0;
      for (std::size_t t = 0; t < kToyModel.size(); ++t) {
        contribution.gradients.push_back(
            {t, std::span<const float>(*gradient).subspan(at, kToyModel[t].elements())});
        at += kToyModel[t].elements();
      }
      return contribution;
    };
    return worker;
  }

  bool finish(double seconds = 10'000.0) {
    return local->run(seconds, [&] {
      if (!local->hub() || !local->hub()->finished()) return false;
      for (const std::string& name : names) {
        if (local->member(name) != nullptr) return false;
      }
      return true;
    });
  }
  void join(const std::string& name, LocalHub::Worker worker) {
    names.push_back(name);
    local->join(name, std::move(worker));
  }

  /// Of the parameters to where all examples together pull.
  double distance() {
    double squares = 0.0;
    std::size_t at = 0;
    for (const auto& span : local->hub()->replica()->parameters()) {
      for (const float w : span) {
        double mean = 0.0;
        for (std::int64_t p = 0; p < plan_.positions; ++p) mean += pull(p, at);
        const double difference = w - mean / static_cast<double>(plan_.positions);
        squares += difference * difference;
        ++at;
      }
    }
    return std::sqrt(squares / static_cast<double>(kToySize));
  }

  ToyPlan plan_;
  TemporaryFolder folder_;
  std::vector<std::string> names;
  std::vector<hub::CommitLine> lines;
  std::optional<LocalHub> local;
};

}  // namespace dgc::test
