// A round is open from one commit to the next. It closes when the messages of all active members
// are in, or at the deadline with those of a quorum. A member that needs much longer than the
// others is not waited for at all: its messages count in the round that is open when they come. A
// member that misses `patience` rounds in a row without a word is away until its next word.
//
// The deadline by speed is 1.2 times what the median member needs. So a straggler costs a fifth of
// a round in the rounds before its speed is known, and nothing later.
//
// A message that is older than `oldest` rounds is taken back, unless its member always needs so
// long: who is on a slow link would never be heard otherwise. What it sends is little older than
// what waits in the residuals of the others.
#include "hub/rounds.h"

#include <algorithm>

namespace dgc::hub {
namespace {

constexpr double kSlack = 1.2;
/// Networks and schedulers are not exact to less.
constexpr double kLeast = 0.05;
/// A message that took so many times what its member usually needs is late even for that member.
constexpr double kUsual = 2.0;
/// Share of the newest measurement in what a member needs.
constexpr double kNewest = 0.3;

}  // namespace

void Rounds::resume(std::uint64_t closed, std::map<std::string, Member> members) {
  closed_ = closed;
  members_ = std::move(members);
}

void Rounds::arrive(const std::string& name, double now) {
  // With nobody there the round stood still.
  const bool first =
      std::none_of(members_.begin(), members_.end(), [](const auto& m) { return m.second.active; });
  if (first && inside_.empty()) opened_ = now;
  Member& member = members_[name];
  member.active = true;
  member.idle = false;
  member.missed = 0;
  member.told = now;
}

void Rounds::depart(const std::string& name) {
  const auto found = members_.find(name);
  if (found != members_.end()) found->second.active = false;
}

void Rounds::idle(const std::string& name) {
  if (const auto found = members_.find(name); found != members_.end()) found->second.idle = true;
}

void Rounds::told(const std::string& name, double now) {
  Member& member = members_[name];
  member.idle = false;
  member.base = closed_;
  member.told = now;
}

Outcome Rounds::outcome_of(const std::string& name, std::uint64_t sequence) const {
  if (const auto in = inside_.find(name); in != inside_.end() && in->second.sequence == sequence) {
    return Outcome::open;
  }
  const auto found = members_.find(name);
  if (found == members_.end() || found->second.sequence != sequence) return Outcome::none;
  return found->second.outcome;
}

Outcome Rounds::message(const std::string& name, std::uint64_t sequence, std::uint64_t base,
                        double now) {
  Member& member = members_[name];
  const Outcome known = outcome_of(name, sequence);
  if (known != Outcome::none) return known;
  // One message at a time, each once, and none about the future.
  if (inside_.contains(name) || sequence <= member.sequence || base > closed_) {
    return Outcome::none;
  }
  member.active = true;
  member.idle = false;
  member.missed = 0;
  const double needed = std::max(0.0, now - member.told);
  const bool as_usual = member.needs > 0.0 && needed <= kUsual * member.needs;
  member.needs = member.needs == 0.0 ? needed : (1.0 - kNewest) * member.needs + kNewest * needed;
  if (finished_ || (closed_ - base > rules_.oldest && !as_usual)) {
    take_back(member, sequence);
    ++member.late;
    return Outcome::taken_back;
  }
  if (base != closed_) ++member.late;
  inside_[name] = {.sequence = sequence, .base = base, .came = now};
  return Outcome::open;
}

void Rounds::take_back(Member& member, std::uint64_t sequence) {
  member.sequence = sequence;
  member.outcome = Outcome::taken_back;
  member.outcome_round = closed_;
}

void Rounds::finish() {
  finished_ = true;
  for (const auto& [name, message] : inside_) take_back(members_[name], message.sequence);
  inside_.clear();
}

double Rounds::usual() const {
  std::vector<double> needs;
  for (const auto& [name, member] : members_) {
    if (member.active && member.needs > 0.0) needs.push_back(member.needs);
  }
  if (needs.empty()) return 0.0;
  const auto middle = needs.begin() + static_cast<std::ptrdiff_t>((needs.size() - 1) / 2);
  std::nth_element(needs.begin(), middle, needs.end());
  return *middle;
}

bool Rounds::is_slow(const Member& member) const {
  return rules_.deadline == 0.0 && member.needs > kSlack * usual() + kLeast;
}

double Rounds::deadline() const {
  if (rules_.deadline > 0.0) return rules_.deadline;
  const double needs = usual();
  return needs == 0.0 ? rules_.longest : std::min(rules_.longest, kSlack * needs + kLeast);
}

int Rounds::quorum() const {
  if (rules_.quorum > 0) return rules_.quorum;
  const auto busy = std::count_if(members_.begin(), members_.end(),
                                  [](const auto& m) { return m.second.active && !m.second.idle; });
  return std::max(1, static_cast<int>(busy + 1) / 2);
}

bool Rounds::is_enough() const {
  auto count = static_cast<int>(inside_.size());
  if (rules_.quorum > 0) {
    // Who has nothing to add would make the round no better by waiting.
    for (const auto& [name, member] : members_) {
      if (member.active && member.idle && !inside_.contains(name)) ++count;
    }
  }
  return count >= quorum();
}

std::vector<std::string> Rounds::missing() const {
  std::vector<std::string> names;
  for (const auto& [name, member] : members_) {
    if (member.active && !member.idle && !inside_.contains(name)) names.push_back(name);
  }
  return names;
}

bool Rounds::is_due(double now) const {
  if (inside_.empty()) return false;
  const bool enough = is_enough();
  const bool all_in = std::all_of(members_.begin(), members_.end(), [&](const auto& m) {
    return !m.second.active || m.second.idle || inside_.contains(m.first) ||
           (enough && is_slow(m.second));
  });
  if (all_in && (rules_.quorum == 0 || enough)) return true;
  return enough && now >= opened_ + deadline();
}

std::optional<double> Rounds::next_look() const {
  if (inside_.empty() || !is_enough()) return std::nullopt;
  return opened_ + deadline();
}

std::vector<std::string> Rounds::close(double now) {
  ++closed_;
  std::vector<std::string> names;
  for (const auto& [name, message] : inside_) {
    names.push_back(name);
    Member& member = members_[name];
    member.sequence = message.sequence;
    member.outcome = Outcome::committed;
    member.outcome_round = closed_;
    ++member.rounds;
  }
  for (auto& [name, member] : members_) {
    if (!member.active || member.idle || inside_.contains(name)) continue;
    ++member.missed;
    // A slow one is at work, and says so by its messages, which come in their own time.
    const bool late = now > member.told + std::max(3.0 * member.needs, 3.0 * deadline());
    if (member.missed >= rules_.patience && late) member.active = false;
  }
  inside_.clear();
  opened_ = now;
  return names;
}

}  // namespace dgc::hub
