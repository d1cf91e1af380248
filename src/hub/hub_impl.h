// The parts of a Hub, for its own files: requests (hub.cpp), coming and going (hub_join.cpp),
// messages and answers (hub_reply.cpp), the end of a round (hub_close.cpp), figures
// (hub_status.cpp).
#pragma once

#include <deque>
#include <list>

#include "hub/hub.h"

namespace dgc::hub {

struct Hub::Impl {
  Impl(std::filesystem::path folder, Journal& journal, HubOptions options, HubPlan plan,
       HubWatcher watcher);

  std::filesystem::path folder;
  Journal& journal;
  HubOptions options;
  HubPlan plan;
  HubWatcher watcher;

  Rounds rounds;
  std::optional<Leases> leases;
  std::optional<Replica> replica;
  bool has_parameters = false;
  std::string giver;         // who was asked for the initial ones
  double asked_giver = 0.0;  // when
  bool done = false;
  std::string failure;  // of the disk: nothing more is committed

  /// Down::select: what was received and not sent yet, as the residual of a compressor.
  std::optional<State> residual;
  std::optional<Compressor> selector;

  /// A message in the open round.
  struct Inside {
    Part part;
    Bytes message;
    double loss = 0.0;
    double norm = 0.0;
    Bytes buffers;
  };
  std::map<std::string, Inside> inside;
  /// Typical norms of the last rounds since the hub was started: what a message that is alone in
  /// its round is compared with.
  std::deque<double> typical_norms;

  struct Guest {
    std::string session;
    std::string process;  // that has the session, as it says
    MemberLine line;      // counters; of `rounds` only after a restart
    double seen = 0.0;    // last word
    double speed = 0.0;   // positions a second of computing, smoothed
    double rtt = 0.0;     // seconds, as it says
    double loss = 0.0, residual_norm = 0.0;
    std::string origin;
    bool evaluates = false;
    bool can_evaluate = true;
    bool here = false;       // for the log of who comes and goes
    std::uint64_t kept = 0;  // of line.saved: what the journal has
  };
  std::map<std::string, Guest> guests;
  std::map<std::string, std::string> sessions;  // to names

  struct Waiting {
    std::uint64_t id;
    std::string name;
    std::uint64_t sequence, have;
    double since;
    Respond respond;
    bool for_parameters = false;  ///< the initial ones, which somebody gives now
  };
  std::list<Waiting> waiting;
  std::uint64_t last_id = 0;
  /// Something has happened that those who wait may have to hear: a commit, the end, leases that
  /// were given back.
  bool news = false;

  std::uint64_t evaluation_due = 0;  // a round after which somebody is to evaluate; 0: none
  std::uint64_t examples = 0;        // in all commits
  std::uint64_t bytes_up = 0, bytes_down = 0;
  std::uint64_t requests = 0, refused = 0, scaled = 0;
  std::map<std::string, std::uint64_t> refused_by_origin;
  double epoch_evaluated = 0.0;
  double clock_offset = 0.0;      // seconds since 1970 at time 0
  std::optional<double> started;  // the first tick
  double look_for_lost = 0.0;     // when to look next for members that are silent

  nlohmann::json looked_at;           // the status, for those who ask at the same time
  double looked = -1e9;               // when
  std::weak_ptr<const Bytes> packed;  // the last snapshot that was sent, while anybody reads it
  std::uint64_t packed_round = 0;

  // hub.cpp
  void guarded(const std::function<void()>& work) noexcept;
  const nlohmann::json& status_now(double now);
  /// Nothing where the answer was given by `respond`, or comes later: then `waits` is its number.
  std::optional<Response> answer(const Request& request, double now, const Respond& respond,
                                 std::uint64_t& waits);
  nlohmann::json run_facts(const TokenLine& token) const;
  Response enroll(const Packet& packet, double now);
  Response join(const std::string& name, const Request& request, const Packet& packet, double now);
  Response initial(const std::string& name, const Packet& packet, double now);
  /// What brings a replica from that round to today: commits, or that a snapshot is needed.
  struct News {
    std::vector<Bytes> commits;
    bool snapshot = false;
    std::vector<std::span<const std::byte>> blobs() const {
      return {commits.begin(), commits.end()};
    }
  };
  News news_after(std::uint64_t round) const;
  Response commits(std::uint64_t after) const;
  std::shared_ptr<const Bytes> snapshot();
  bool is_given(double now) const;
  std::optional<Response> take_message(const std::string& name, const Packet& packet, double now);
  Response evaluation(const std::string& name, const Packet& packet, double now);
  Response leave(const std::string& name, const Packet& packet, double now);
  Guest& guest_of(const Packet& packet, const std::string& name, double now);
  /// Empty where there is nothing to say yet.
  std::optional<Response> reply(const std::string& name, std::uint64_t sequence, std::uint64_t have,
                                double now, bool must, double held = 0.0);
  void answer_waiting(double now, bool all);
  void note(const std::string& member, const std::string& event, double now);
  void set_saved(const std::string& name, std::uint64_t saved);
  /// Written down at once unless the caller does so, by write_leases().
  Lease lease_for(const std::string& name, std::uint64_t sequence, bool keep = true);
  void write_leases();
  /// A member and all leases, as one.
  void keep_leases(const std::string& name);
  std::int64_t share_of(const Guest& guest) const;

  // hub_status.cpp
  nlohmann::json status(double now) const;
  static std::string metrics(const nlohmann::json& status);

  // hub_close.cpp
  void begin(std::vector<TensorSpec> model, std::vector<TensorSpec> buffers);
  void take_initial_parameters();
  void resume();
  void close(double now);
  void close_all_due(double now);
  Commit make_commit(const std::vector<std::string>& names);
  Bytes select(const Commit& commit, const Inbox& inbox);
  /// What the residual of the hub becomes by a commit, from what it received.
  void redo_selection(const Commit& commit, std::span<const std::byte> inbox);
  void write_snapshot();
  void finish_if_done(double now);
  /// Of the parameters at the end of the run, unless there is one.
  void ask_for_last_evaluation();
  double epoch() const;
  HubPlan::Pace pace() const;
  double lost_members(double now);
};

// What the files of the Hub share.

Response packet_response(const nlohmann::json& head,
                         std::span<const std::span<const std::byte>> blobs = {});
/// Of HTTP.
int status_of(ErrorCode code);
[[noreturn]] void refuse(ErrorCode code, const std::string& subject, const std::string& what,
                         const std::string& hint = {});
/// Whether a control character begins there.
bool is_control(std::string_view text, std::size_t at);
/// A member's number that is of no use is taken as 0: nothing is decided by it.
double harmless(const nlohmann::json& head, const char* name, double most);
/// "sequence". Throws Error(invalid_argument) for one that no run gets to.
std::uint64_t message_number(const nlohmann::json& head);

}  // namespace dgc::hub
