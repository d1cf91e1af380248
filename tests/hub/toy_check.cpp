// What has to hold of a run when it is over, whatever happened meanwhile.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/file.h"
#include "toy.h"

namespace dgc::test {

void Toy::check(const std::set<std::string>& gone) {
  end_all(gone);
  if (testing::Test::HasFatalFailure()) return;
  for (const std::string& name : gone) {
    forget_after(name, journal->members().at(name).saved);
  }
  check_replay();
  check_conserved(gone);
  check_examples();
}

void Toy::end_all(const std::set<std::string>& gone) {
  if (local->hub() == nullptr) local->start_hub();
  for (const auto& [name, pace] : paces_) {
    if (gone.contains(name)) {
      local->kill(name);
      continue;
    }
    if (local->member(name) == nullptr) join(name, pace);
  }
  const auto all_gone = [&] {
    return std::ranges::all_of(paces_,
                               [&](const auto& p) { return local->member(p.first) == nullptr; });
  };
  // What was void until now is known to be so before anybody leaves.
  run_until(100.0, [&] {
    return std::ranges::all_of(paces_, [&](const auto& p) {
      const hub::Member* const member = local->member(p.first);
      return member == nullptr || !member->session().empty();
    });
  });
  for (const auto& [name, pace] : paces_) local->leave(name);
  ASSERT_TRUE(run_until(1000.0, all_gone)) << "somebody never left";
}

void Toy::check_replay() {
  hub::Replica* const hub = local->hub()->replica();
  if (!initial_) return;
  ASSERT_NE(hub, nullptr);
  hub::Replica replay(kToyModel, hub->buffer_specs(), plan.terms);
  replay.load(initial_->snapshot());
  std::set<std::pair<std::string, std::uint64_t>> parts;
  for (const hub::Commit& commit : commits) {
    replay.apply(commit);
    ASSERT_EQ(replay.hash(), hashes_.at(commit.round));
    for (const hub::Part& part : commit.parts) {
      EXPECT_TRUE(parts.emplace(part.member, part.sequence).second)
          << "message " << part.sequence << " of " << part.member << " is in two commits";
    }
  }
  EXPECT_EQ(replay.round(), hub->round());
  EXPECT_EQ(replay.snapshot(), hub->snapshot()) << "the hub has something else than its commits";
}

std::vector<double> Toy::residual_of(const std::string& name, bool is_gone) {
  std::uint64_t newest = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder_ / name)) {
    const std::string file = entry.path().filename().string();
    if (file.starts_with("residual-"))
      newest = std::max<std::uint64_t>(newest, std::stoull(file.substr(9)));
  }
  if (is_gone) newest = journal->members().at(name).saved;
  std::vector<double> sum;
  State state(kToyModel, 0, 1, plan.terms.member_options().needs_velocity());
  if (newest != 0 || !is_gone) {
    state.load(folder_ / name / fmt::format("residual-{:09}.state", newest));
  }
  for (std::size_t t = 0; t < kToyModel.size(); ++t) {
    for (const float v : state.residual(t)) sum.push_back(static_cast<double>(v));
  }
  return sum;
}

void Toy::check_conserved(const std::set<std::string>& gone) {
  std::vector<double> rest(kToySize), scale(kToySize);
  for (const auto& [name, mine] : increments_) {
    for (const auto& [sequence, increment] : mine) {
      for (std::size_t i = 0; i < kToySize; ++i) {
        if (!increment.lost) rest[i] += increment.values[i];
        scale[i] += std::fabs(increment.values[i]);
      }
    }
  }
  const auto add = [&](std::vector<double>& to, const hub::Bytes& message, double factor) {
    for (const Entries& entries : decode_entries(CheckedMessage(message), kToySize * 2)) {
      const std::size_t from = entries.tensor == 0 ? 0 : kToyModel[0].elements();
      for (std::size_t i = 0; i < entries.values.size(); ++i) {
        const std::size_t at =
            entries.indices.size() == entries.elements ? i : entries.indices.at(i);
        to[from + at] += factor * static_cast<double>(entries.values[i]);
      }
    }
  };
  // At the hub that selects: what came in, and what of it went out.
  std::vector<double> at_hub(kToySize), hub_scale(kToySize);
  const bool selects = plan.terms.down == hub::Down::select;
  for (const hub::Commit& commit : commits) {
    std::vector<hub::Bytes> messages = commit.messages;
    if (selects) messages = inboxes_.at(commit.round).messages;
    ASSERT_EQ(messages.size(), commit.parts.size());
    const double share = 1.0 / static_cast<double>(hub::examples_of(commit.parts));
    for (std::size_t i = 0; i < messages.size(); ++i) {
      // What strangers sent was in no residual here.
      if (paces_.contains(commit.parts[i].member)) add(rest, messages[i], -1.0);
      if (selects) add(at_hub, messages[i], share * static_cast<double>(commit.parts[i].factor));
    }
    if (!selects) continue;
    for (std::size_t i = 0; i < kToySize; ++i) hub_scale[i] += std::fabs(at_hub[i]);
    const bool global = plan.terms.momentum_correction == MomentumCorrection::global;
    add(at_hub, commit.messages.at(0), global ? static_cast<double>(plan.terms.momentum) - 1 : -1);
  }
  for (const auto& [name, pace] : paces_) {
    const std::vector<double> residual = residual_of(name, gone.contains(name));
    // What of a member that is gone came in after it had saved is not in what was saved.
    for (std::size_t i = 0; i < kToySize; ++i) rest[i] -= residual[i];
    if (!gone.contains(name)) continue;
    const std::uint64_t saved = journal->members().at(name).saved;
    for (const hub::Commit& commit : commits) {
      for (std::size_t p = 0; p < commit.parts.size(); ++p) {
        const hub::Part& part = commit.parts[p];
        if (part.member == name && part.sequence > saved) add(rest, commit.messages.at(p), 1.0);
      }
    }
  }
  for (std::size_t i = 0; i < kToySize; ++i) {
    ASSERT_NEAR(rest[i], 0.0, 2e-6 * scale[i] + 1e-6) << "element " << i << " is not conserved";
  }
  if (!selects) return;
  local->hub()->save();
  const auto snapshots = journal->snapshots();
  ASSERT_FALSE(snapshots.empty());
  hub::Replica replica(kToyModel, local->hub()->replica()->buffer_specs(), plan.terms);
  const MappedFile file(folder_ / "hub" / snapshots.front().second);
  const auto saved = replica.load(file.contents()).blob(hub::Replica::first_extra());
  std::vector<float> residual(kToySize);
  ASSERT_EQ(saved.size(), kToySize * sizeof(float));
  std::memcpy(residual.data(), saved.data(), saved.size());
  for (std::size_t i = 0; i < kToySize; ++i) {
    ASSERT_NEAR(at_hub[i], static_cast<double>(residual[i]), 2e-6 * hub_scale[i] + 1e-6)
        << "element " << i << " of the hub's residual";
  }
}

void Toy::check_examples() {
  if (plan.private_data) return;
  const auto total = static_cast<std::size_t>(plan.epochs * static_cast<double>(plan.positions));
  std::vector<int> times(total);
  for (const auto& [name, mine] : increments_) {
    for (const auto& [sequence, increment] : mine) {
      if (increment.lost) continue;
      const hub::Lease& lease = increment.lease;
      for (std::int64_t p = lease.first; p < lease.first + lease.count; ++p) {
        ++times.at(lease.epoch * static_cast<std::size_t>(plan.positions) +
                   static_cast<std::size_t>(p));
      }
    }
  }
  const auto twice = std::ranges::count_if(times, [](int n) { return n > 1; });
  EXPECT_EQ(twice, 0) << "examples were done twice";
  const auto parts = [&](const hub::Commit& commit) {
    return std::ranges::all_of(commit.parts,
                               [&](const auto& part) { return paces_.contains(part.member); });
  };
  if (!std::ranges::all_of(commits, parts)) return;  // strangers have done the rest
  const auto done = std::ranges::count_if(times, [](int n) { return n > 0; });
  // Everybody has saved and left.
  EXPECT_EQ(done, local->hub()->leases()->done());
  if (local->hub()->finished() && plan.rounds == 0) {
    EXPECT_EQ(static_cast<std::size_t>(done), total) << "examples were left out";
  }
}

}  // namespace dgc::test
