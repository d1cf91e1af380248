#include "toy.h"

#include <algorithm>
#include <cmath>

namespace dgc::test {

using hub::Contribution;
using hub::LocalHub;
using hub::Member;

float toy_pull(std::int64_t position, std::size_t i) {
  const auto mixed =
      static_cast<std::uint32_t>(position * 2654435761 + static_cast<std::int64_t>(i) * 40503);
  return static_cast<float>(i % 11) / 5.0f - 1.0f +
         (static_cast<float>((mixed >> 8) & 0xffff) / 65536.0f - 0.5f);
}

std::filesystem::path fast_folder() {
  return std::filesystem::exists("/dev/shm") ? "/dev/shm" : std::filesystem::path();
}

Toy::Toy(const ToyPlan& the_plan) : plan(the_plan), folder_("dgc-toy-", fast_folder()) {
  LocalHub::Options options;
  options.hub.rules = plan.rules;
  options.hub.terms = plan.terms;
  options.hub.settings = "{}";
  options.hub.norm_bound = plan.norm_bound;
  options.hub.lost_after = plan.lost_after;
  options.plan.epochs = plan.epochs;
  options.plan.rounds = plan.rounds;
  options.plan.batch = plan.batch;
  options.plan.snapshot_every = plan.snapshot_every;
  options.plan.evaluate_every = plan.evaluate_every;
  options.plan.private_data = plan.private_data;
  options.plan.pace = [pace = plan](const auto&) {
    return hub::HubPlan::Pace{.lr = pace.lr, .inner_lr = pace.inner_lr, .ratio = pace.ratio};
  };
  options.model = kToyModel;
  if (plan.buffers) options.buffers = kToyBuffers;
  options.positions = plan.positions;
  options.watcher.committed = [this](const hub::CommitLine& line) {
    lines.push_back(line);
    EXPECT_EQ(line.round, lines.size()) << "a round was counted twice, or not at all";
    commits.push_back(hub::commit_from(*journal->commit_packet(line.round)));
    if (plan.terms.down == hub::Down::select) {
      EXPECT_TRUE(commits.back().parts.empty()) << "members hear of all others";
      inboxes_[line.round] = hub::inbox_from(*journal->commit_inbox(line.round));
      commits.back().parts = inboxes_.at(line.round).parts;
    }
    hashes_.push_back(local->hub()->replica()->hash());
  };
  options.watcher.evaluated = [this](const auto& note) { evaluations.push_back(note); };
  options.watcher.said = [this](const std::string& what) { said.push_back(what); };
  local.emplace(folder_.path(), std::move(options));
  journal.emplace(folder_ / "hub" / hub::kJournalFile, /*create=*/false);
}

void Toy::join(const std::string& name, const Pace& pace) {
  paces_[name] = pace;
  LocalHub::Worker worker;
  worker.seconds_each = pace.seconds_each;
  worker.evaluates = pace.evaluates;
  worker.link = {.bytes_per_second = pace.bytes_per_second,
                 .delay = std::chrono::duration<double>(pace.delay)};
  worker.begin = [name](Member& member) {
    // Everybody begins elsewhere: only the parameters of the run may count.
    for (const auto& span : member.replica().parameters()) {
      std::fill(span.begin(), span.end(), 0.5f + static_cast<float>(name.back() % 8) / 16.0f);
    }
  };
  worker.compute = [this, name](Member& member) { return compute(name, member); };
  seen_.erase(name);
  local->join(name, std::move(worker));
}

namespace {

/// The mean pull of the lease's examples on `at`; returns the mean loss.
double pull_of(const hub::Lease& lease, const std::vector<float>& at, std::vector<float>& out) {
  std::fill(out.begin(), out.end(), 0.0f);
  const auto count = static_cast<float>(lease.count);
  double loss = 0.0;
  for (std::int64_t p = lease.first; p < lease.first + lease.count; ++p) {
    for (std::size_t i = 0; i < at.size(); ++i) {
      const float difference = at[i] - toy_pull(p, i);
      out[i] += difference / count;
      loss += static_cast<double>(difference) * difference / static_cast<double>(lease.count);
    }
  }
  return loss;
}

std::vector<float> flat(hub::Replica& replica) {
  std::vector<float> values;
  for (const auto& span : replica.parameters()) {
    values.insert(values.end(), span.begin(), span.end());
  }
  return values;
}

}  // namespace

Contribution Toy::compute(const std::string& name, Member& member) {
  if (!initial_) {
    EXPECT_EQ(member.round(), 0u);
    initial_.emplace(kToyModel, plan.buffers ? kToyBuffers : std::vector<TensorSpec>(), plan.terms);
    initial_->load(member.replica().snapshot());
    hashes_.insert(hashes_.begin(), initial_->hash());
  }
  const hub::Lease& lease = member.lease();
  const std::vector<float> at = flat(member.replica());
  gradient_.resize(kToySize);
  double loss = 0.0;
  if (gradient) {
    gradient(member, gradient_);
  } else if (plan.local_steps > 0) {
    std::vector<float> inner = at;
    for (int step = 0; step < plan.local_steps; ++step) {
      loss = pull_of(lease, inner, gradient_);
      for (std::size_t i = 0; i < kToySize; ++i) {
        inner[i] -= static_cast<float>(member.inner_lr()) * gradient_[i];
      }
    }
    for (std::size_t i = 0; i < kToySize; ++i) gradient_[i] = at[i] - inner[i];
  } else {
    loss = pull_of(lease, at, gradient_);
  }
  for (float& g : gradient_) g *= paces_.at(name).wrong;
  note_increment(name, member, gradient_);

  Contribution contribution{.examples = static_cast<std::uint64_t>(lease.count), .loss = loss};
  std::size_t from = 0;
  for (std::size_t t = 0; t < kToyModel.size(); ++t) {
    const std::size_t size = kToyModel[t].elements();
    contribution.gradients.push_back({t, std::span<const float>(gradient_).subspan(from, size)});
    from += size;
  }
  if (member.wants_buffers()) {
    buffers_.assign(kToyBuffers[0].elements(), static_cast<float>(name.back()));
    contribution.buffers = buffers_;
  }
  return contribution;
}

void Toy::note_increment(const std::string& name, Member& member, const std::vector<float>& g) {
  const auto& terms = plan.terms;
  Increment increment{.values = {}, .lease = member.lease()};
  const double m = terms.member_options().needs_velocity() ? terms.momentum : 0.0;
  std::size_t i = 0;
  for (std::size_t t = 0; t < kToyModel.size(); ++t) {
    for (std::size_t j = 0; j < kToyModel[t].elements(); ++j, ++i) {
      // Gradients travel as sums over examples.
      const double sum = static_cast<double>(g[i]) * static_cast<double>(member.lease().count);
      const double u = m > 0.0 ? static_cast<double>(member.state().velocity(t)[j]) : 0.0;
      const auto v = static_cast<double>(member.state().residual(t)[j]);
      const double decayed = (1.0 - static_cast<double>(terms.residual_decay)) * v;
      const double velocity = terms.nesterov ? m * (u + sum) : m * u;
      increment.values.push_back(velocity + sum - decayed);
    }
  }
  auto& mine = increments_[name];
  const std::uint64_t sequence = member.sequence() + 1;
  EXPECT_FALSE(mine.contains(sequence)) << name << " has message " << sequence << " twice";
  EXPECT_EQ(member.lease().sequence, sequence);
  mine[sequence] = std::move(increment);
}

void Toy::observe() {
  if (hub::Hub* const hub = local->hub(); hub != nullptr && hub->replica() != nullptr) {
    ASSERT_EQ(hub->round(), lines.size());
    if (!lines.empty()) {
      ASSERT_EQ(hub->replica()->hash(), hashes_.back());
    }
  }
  for (const auto& [name, pace] : paces_) {
    Member* const member = local->member(name);
    if (member == nullptr) continue;
    if (const auto back = member->hub_went_back()) hub_backs[name] = *back;
    if (const auto lost = member->went_back()) {
      // It names what it lost, once: all that it had computed since.
      const auto& mine = increments_[name];
      const auto newly = std::count_if(mine.upper_bound(lost->to), mine.end(),
                                       [](const auto& i) { return !i.second.lost; });
      EXPECT_EQ(lost->messages, static_cast<std::uint64_t>(newly)) << name;
      forget_after(name, lost->to);
      losses[name].push_back(*lost);
    }
    if (member->todo() != hub::Todo::compute || hashes_.empty()) continue;
    if (restored_ && !hub_backs.contains(name)) continue;  // it has not heard of it yet
    const auto [seen, first] = seen_.try_emplace(name, UINT64_MAX);
    if (seen->second == member->round()) continue;
    seen->second = member->round();
    EXPECT_EQ(member->replica().hash(), hashes_.at(member->round()))
        << name << " has other parameters at round " << member->round();
  }
}

void Toy::copy_hub(const std::filesystem::path& to) {
  journal.reset();
  local->kill_hub();
  std::filesystem::copy(folder_ / "hub", to, std::filesystem::copy_options::recursive);
  journal.emplace(folder_ / "hub" / hub::kJournalFile, /*create=*/false);
  local->start_hub();
}

void Toy::restore_hub(const std::filesystem::path& from) {
  journal.reset();
  local->kill_hub();
  std::filesystem::remove_all(folder_ / "hub");
  std::filesystem::copy(from, folder_ / "hub", std::filesystem::copy_options::recursive);
  journal.emplace(folder_ / "hub" / hub::kJournalFile, /*create=*/false);
  local->start_hub();
  lines.resize(local->hub()->round());
  commits.resize(lines.size());
  hashes_.resize(lines.size() + 1);
  seen_.clear();
  restored_ = true;
}

bool Toy::run_until(double seconds, const std::function<bool()>& done) {
  return local->run(seconds, [&] {
    observe();
    return testing::Test::HasFatalFailure() || done();
  });
}

bool Toy::run(double seconds) {
  return run_until(seconds, [] { return false; });
}

bool Toy::run_rounds(std::uint64_t more) {
  const std::uint64_t target = lines.size() + more;
  return run_until(1000.0, [&] { return lines.size() >= target; });
}

bool Toy::finish(double seconds) {
  const bool ended = run_until(seconds, [&] {
    if (local->hub() == nullptr || !local->hub()->finished()) return false;
    return std::ranges::all_of(paces_,
                               [&](const auto& p) { return local->member(p.first) == nullptr; });
  });
  if (!ended && local->hub() != nullptr) {
    nlohmann::json status = local->hub()->status(local->now());
    status.erase("curve");
    ADD_FAILURE() << "the run does not end: " << status.dump(1);
  }
  return ended;
}

std::uint64_t Toy::committed(const std::string& name) const {
  std::uint64_t count = 0;
  for (const hub::Commit& commit : commits) {
    for (const hub::Part& part : commit.parts) count += part.member == name ? 1 : 0;
  }
  return count;
}

std::uint64_t Toy::lost(const std::string& name) const {
  const auto mine = increments_.find(name);
  if (mine == increments_.end()) return 0;
  return static_cast<std::uint64_t>(
      std::ranges::count_if(mine->second, [](const auto& i) { return i.second.lost; }));
}

double Toy::distance() {
  const std::vector<float> at = flat(*local->hub()->replica());
  double squares = 0.0;
  for (std::size_t i = 0; i < at.size(); ++i) {
    double mean = 0.0;
    for (std::int64_t p = 0; p < plan.positions; ++p) mean += static_cast<double>(toy_pull(p, i));
    const double difference =
        static_cast<double>(at[i]) - mean / static_cast<double>(plan.positions);
    squares += difference * difference;
  }
  return std::sqrt(squares / static_cast<double>(kToySize));
}

void Toy::forget_after(const std::string& name, std::uint64_t sequence) {
  auto& mine = increments_[name];
  for (auto it = mine.upper_bound(sequence); it != mine.end(); ++it) it->second.lost = true;
}

}  // namespace dgc::test
