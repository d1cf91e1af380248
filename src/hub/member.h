// A member's side of a run, without the network: what it sends, and what it makes of the answers.
// src/hub/client.h carries the bytes for `dgc join`, the Python package does it by itself.
//
//     Member member(model, buffers, options);
//     while (member.todo() != Todo::end) {
//       if (member.todo() == Todo::ask) {
//         const Ask ask = member.next_request(…);   // carry it to the hub, as often as it takes
//         member.take(answer);
//       } else if (member.todo() == Todo::compute) {
//         … gradients of member.lease() at member.replica() …
//         member.contribute(…);
//       } else {
//         member.evaluated(…);
//       }
//     }
//
// What the member has not sent yet, its residual, is saved in its folder every so many rounds, and
// what it sends is written there before it leaves. So a process that is killed goes back to what
// was saved, takes out of it what has arrived at the hub since, and loses only what came in since.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "dgc/compressor.h"
#include "hub/leases.h"
#include "hub/replica.h"
#include "hub/rounds.h"
#include "hub/sent_log.h"

namespace dgc::hub {

struct MemberOptions {
  Terms terms;
  std::string run;  ///< the hub's name of it
  std::filesystem::path folder;
  int threads = 1;
};

/// What a member has for a round.
struct Contribution {
  std::vector<Gradient> gradients;  ///< means over the examples
  std::uint64_t examples = 0;
  double loss = 0.0;
  double seconds = 0.0;            ///< that computing took
  std::span<const float> buffers;  ///< given where wants_buffers()
  double residual_norm = 0.0;      ///< filled in by the Member
};

enum class Todo {
  ask,       ///< a request to the hub
  compute,   ///< gradients of lease(), then contribute()
  evaluate,  ///< replica(), then evaluated()
  end,       ///< nothing: the run is over, or this member has left
};

/// A request to the hub.
struct Ask {
  std::string method, path;
  Bytes body;
  bool waits = false;  ///< the answer may take as long as a round
};

/// Where a member keeps the residual of that run: a second run of the same hub has one of its own.
inline std::filesystem::path residual_folder(const std::filesystem::path& state,
                                             const std::string& run) {
  return state / ("residual-" + run.substr(0, 8));
}

class Member {
 public:
  /// Finds what this member has saved in the folder. Throws Error: state_mismatch where the folder
  /// is of another run or model, io.
  Member(std::vector<TensorSpec> model, std::vector<TensorSpec> buffers, MemberOptions options);
  ~Member();

  /// `positions` and `data` say what this member trains on; `evaluates`, whether it has something
  /// to evaluate with. Before anything else.
  void set_data(std::int64_t positions, const std::string& data, bool evaluates = true);
  /// What is to be done next.
  Todo todo() const noexcept;
  /// Where that is `ask`: what the hub is to be asked. May be sent again where no answer came.
  /// `rtt` is what a request took, in seconds, for the hub's page.
  Ask next_request(double rtt);
  /// The answer to it. Throws Error with what the hub says, where that ends the run for this
  /// member.
  void take(std::span<const std::byte> answer);
  /// From now on nothing is computed any more: todo() asks until what is on its way has arrived,
  /// tells the hub, and then is `end`.
  void leave() noexcept { leaves_ = true; }

  std::uint64_t round() const noexcept { return replica_.round(); }
  std::uint64_t hub_round() const noexcept { return hub_round_; }
  Replica& replica() noexcept { return replica_; }
  /// What to compute next.
  const Lease& lease() const noexcept { return lease_; }
  double inner_lr() const noexcept { return inner_lr_; }
  bool wants_buffers() const noexcept { return wants_buffers_; }
  /// Of the parameters as they are; an empty list where this member has nothing to evaluate with.
  void evaluated(double loss, std::vector<std::pair<std::string, double>> metrics);

  /// Selects, and writes down what is to be sent. Throws Error(nonfinite_gradient), with nothing
  /// changed.
  void contribute(const Contribution& contribution);
  bool is_outstanding() const noexcept { return outstanding_; }

  /// Saves the residual now. Not while a message is outstanding.
  void save();
  /// Bytes that are saved with the residual, and given back where a process starts anew: of an
  /// inner optimizer, say.
  void keep_with_residual(std::function<Bytes()> extra) { extra_ = std::move(extra); }
  std::optional<Bytes> take_saved_extra() { return std::exchange(saved_extra_, {}); }

  bool finished() const noexcept { return finished_; }
  /// Seconds that the hub kept the last request that waits: the rest was the way.
  double held() const noexcept { return held_; }

  State& state() noexcept { return state_; }
  std::uint64_t sequence() const noexcept { return sequence_; }
  Outcome last_outcome() const noexcept { return outcome_; }
  const std::string& session() const noexcept { return session_; }
  double ratio() const noexcept { return ratio_; }
  std::size_t message_bytes() const noexcept { return message_.size(); }

  /// What was lost when this process, or the one before, went back to what was saved.
  struct WentBack {
    std::uint64_t to = 0;        ///< the message that the saved residual ends with
    std::uint64_t messages = 0;  ///< after it
    std::uint64_t examples = 0;  ///< of those: others do them again
  };
  /// Since the last call.
  std::optional<WentBack> went_back();

  /// The hub is at an earlier round than this member was: somebody put an older copy of its folder
  /// in place. The member takes the hub's parameters then, and keeps its residual.
  struct HubWentBack {
    std::uint64_t from = 0;  ///< the member's round
    std::uint64_t to = 0;    ///< the hub's
  };
  /// Since the last call.
  std::optional<HubWentBack> hub_went_back();

 private:
  struct Saved;
  void find_saved();
  Bytes join_request() const;
  Bytes round_request(double rtt) const;
  nlohmann::json about_now(double rtt) const;
  Ask good_bye(double rtt);
  void take_join(const Packet& packet);
  void take_commits(const Packet& packet);
  void take_reply(const Packet& packet);
  void go_back(std::uint64_t to, std::uint64_t last, Outcome of_last);
  void settle(Outcome outcome);
  void apply_commits(const Packet& packet);
  void make_compressor();
  double sampled_norm() const;
  std::filesystem::path residual_file(std::uint64_t sequence) const;
  std::filesystem::path extra_file(std::uint64_t sequence) const;
  void forget_before(std::uint64_t sequence);

  MemberOptions options_;
  Replica replica_;
  State state_;
  std::unique_ptr<Compressor> compressor_;
  std::unique_ptr<SentLog> log_;
  std::vector<std::uint64_t> saved_;  // sequences, in increasing order
  std::string process_;               // random: this one, for the hub
  bool alive_ = false;                // state_ is what this process has made of it
  std::uint64_t sequence_ = 0;        // of the last message
  std::uint64_t base_ = 0;            // the round that it was computed at
  bool outstanding_ = false;
  Outcome outcome_ = Outcome::none;
  Contribution about_;  // of the last message, without gradients
  Bytes message_;
  std::vector<float> buffers_;
  std::int64_t positions_ = 0;
  std::string data_;
  bool can_evaluate_ = true;
  enum class Asked { join, initial, snapshot, commits, round, evaluation, leave };
  Asked asked_ = Asked::join;
  bool in_round_ = false;  // the hub has the message
  bool leaves_ = false, left_ = false, told_ = false;
  std::optional<Bytes> evaluation_;  // that is to be sent
  std::string session_;
  std::uint64_t hub_round_ = 0;
  double ratio_ = 1.0, inner_lr_ = 0.0;
  double members_ = 1.0, held_ = 0.0;
  Lease lease_;
  bool wants_buffers_ = false, evaluates_ = false, finished_ = false, needs_parameters_ = false;
  bool needs_snapshot_ = false;
  std::function<Bytes()> extra_;
  std::optional<Bytes> saved_extra_;
  std::optional<WentBack> went_back_;
  std::optional<HubWentBack> hub_went_back_;
};

}  // namespace dgc::hub
