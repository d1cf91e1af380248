// Which examples each member works on, where all have the same data: ranges of an epoch's order,
// leased. An example is done when it is in a residual that its member has saved, or in a commit
// that came before that; a lease that a lost member has not saved is given to others. So each epoch
// has every example once.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace dgc::hub {

struct Lease {
  std::uint64_t sequence = 0;  ///< of the message that will have it
  std::uint64_t epoch = 0;
  std::int64_t first = 0, count = 0;  ///< positions in the epoch's order; 0: nothing is left

  bool operator==(const Lease&) const = default;
};

class Leases {
 public:
  /// `positions` in an epoch; nothing is leased after `total` of them.
  Leases(std::int64_t positions, std::int64_t total) : positions_(positions), total_(total) {}

  /// The lease of a member's message: always the same for the same message. At most `count`, and
  /// less at the end of an epoch. Empty where nothing is left, or only what others have.
  Lease take(const std::string& member, std::uint64_t sequence, std::int64_t count);
  /// Whether there is a lease for that message already.
  bool has(const std::string& member, std::uint64_t sequence) const;
  /// The member has saved its residual with all messages up to `sequence`: those are done.
  void saved(const std::string& member, std::uint64_t sequence);
  /// What the member has not saved is to be leased again.
  void release(const std::string& member);
  /// The same, of messages after `sequence`.
  void release_after(const std::string& member, std::uint64_t sequence);

  /// Positions that were leased and not given back.
  std::int64_t taken() const noexcept;
  std::int64_t done() const noexcept { return done_; }
  /// Nothing is left that nobody has.
  bool all_taken() const noexcept { return taken() >= total_; }
  /// Nothing is left, and nobody has anything.
  bool finished() const noexcept { return done_ >= total_; }
  bool has_any(const std::string& member) const { return held_.contains(member); }
  /// Messages of a member that it has not saved yet, and for which it has leases.
  std::size_t messages_of(const std::string& member) const;
  /// Of a member: what it has not saved yet.
  std::int64_t held_by(const std::string& member) const;

  nlohmann::json to_json() const;
  /// Throws Error(bad_state).
  static Leases from(const nlohmann::json& json);

 private:
  std::int64_t positions_ = 0, total_ = 0;
  std::int64_t next_ = 0;  ///< in all epochs together
  std::int64_t done_ = 0;
  std::deque<Lease> returned_;
  std::map<std::string, std::vector<Lease>> held_;
};

}  // namespace dgc::hub
