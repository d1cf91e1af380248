// Who is in a round, when it closes, and what became of each message: a pure state machine. It
// knows no clock, network or disk: times come with the calls, in seconds since any moment.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace dgc::hub {

struct RoundRules {
  int quorum = 0;         ///< members that a deadline needs; 0: half of those who are active
  double deadline = 0.0;  ///< seconds that a round waits for the slow; 0: by the members' speed
  double longest = 60.0;  ///< the most of a deadline by speed, and that of the first rounds
  /// A message may be so many rounds late, or as late as its member always is.
  std::uint64_t oldest = 3;
  int patience = 3;  ///< after so many missed rounds a silent member is away
};

/// What became of a message.
enum class Outcome {
  none,        ///< there is no such message
  open,        ///< it is in the round that is open
  committed,   ///< it is in a commit
  taken_back,  ///< it came too late: the member keeps what it selected
};

class Rounds {
 public:
  struct Member {
    bool active = false;
    bool idle = false;           ///< active, and there is nothing for it to do
    std::uint64_t sequence = 0;  ///< of its last message with an outcome
    Outcome outcome = Outcome::none;
    std::uint64_t outcome_round = 0;
    std::uint64_t base = 0;  ///< the round that it was last told of
    double told = 0.0;       ///< when
    double needs = 0.0;      ///< seconds from being told to its message; smoothed; 0: not known
    int missed = 0;          ///< rounds that closed without it, since its last message
    std::uint64_t rounds = 0, late = 0;
  };
  struct Message {
    std::uint64_t sequence = 0, base = 0;
    double came = 0.0;
  };

  explicit Rounds(RoundRules rules) : rules_(rules) {}

  /// Rounds that have been closed.
  std::uint64_t closed() const noexcept { return closed_; }
  /// When the open round began: with the last close, or with the first member after a pause.
  double opened() const noexcept { return opened_; }
  /// After a restart: what the journal has.
  void resume(std::uint64_t closed, std::map<std::string, Member> members);
  const std::map<std::string, Member>& members() const noexcept { return members_; }
  const std::map<std::string, Message>& inside() const noexcept { return inside_; }

  /// A member came, or came back. Rounds wait for it from now on.
  void arrive(const std::string& name, double now);
  /// Rounds do not wait for it any more. A message of its that is in the round stays.
  void depart(const std::string& name);
  /// Its message that is in the open round is taken out again: it has gone back to what it saved.
  void withdraw(const std::string& name) { inside_.erase(name); }
  /// It is there, and nothing is left to do: rounds do not wait for it, until it is told something
  /// or a message of its comes. It counts for a fixed quorum.
  void idle(const std::string& name);
  /// It was sent the parameters after `closed()`; its next message is due.
  void told(const std::string& name, double now);

  /// A message came. `open` also for one that is in the round already, `committed` and `taken_back`
  /// for one that has its outcome. `none`: another one was due.
  Outcome message(const std::string& name, std::uint64_t sequence, std::uint64_t base, double now);
  /// What became of it.
  Outcome outcome_of(const std::string& name, std::uint64_t sequence) const;

  /// Whether the round is to be closed now.
  bool is_due(double now) const;
  /// When to look again; nothing where only a message changes something.
  std::optional<double> next_look() const;
  /// Whom the open round waits for.
  std::vector<std::string> missing() const;
  /// Members that a deadline needs.
  int quorum() const;
  /// Seconds after the opening at which the quorum is enough.
  double deadline() const;

  /// The run is over: messages that are in the open round, and all that come, are taken back.
  void finish();

  /// Closes the round: what is inside is committed. Returns whose messages, by name.
  std::vector<std::string> close(double now);

 private:
  void take_back(Member& member, std::uint64_t sequence);
  bool is_enough() const;
  bool is_slow(const Member& member) const;
  double usual() const;

  RoundRules rules_;
  std::uint64_t closed_ = 0;
  bool finished_ = false;
  double opened_ = 0.0;
  std::map<std::string, Member> members_;
  std::map<std::string, Message> inside_;
};

}  // namespace dgc::hub
