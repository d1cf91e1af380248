// The hub: answers requests, closes rounds, writes them down. It knows no sockets and no clock: the
// server (server.h) and tests give it requests and times. docs/hub.md specifies the requests.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dgc/compressor.h"
#include "dgc/error.h"
#include "hub/journal.h"
#include "hub/leases.h"
#include "hub/replica.h"
#include "hub/rounds.h"
#include "hub/terms.h"

namespace dgc::hub {

struct Request {
  std::string method, path;  ///< "POST", "/v1/round"; the path without what follows '?'
  std::string query;         ///< what follows '?'
  std::string token;         ///< of the header Authorization: Bearer
  std::string origin;        ///< address of who sent it, for the log
  Bytes body;
};

struct Response {
  int status = 200;
  std::string type = "application/octet-stream";
  std::shared_ptr<const Bytes> body;
  std::string allow;  ///< of status 405: the method that is right
};
/// An error as members understand it.
Response problem(int status, const Error& error);
using Respond = std::function<void(Response)>;

/// What a run does, as the recipe says.
struct HubPlan {
  std::int64_t positions = 0;  ///< in an epoch, as the first member says; all have the same data
  double epochs = 1.0;
  std::uint64_t rounds = 0;          ///< the run ends after so many; 0: after `epochs`
  std::int64_t batch = 0;            ///< positions that a member works on in a round
  std::int64_t expected = 4;         ///< members, for what is due once an epoch
  std::uint64_t evaluate_every = 0;  ///< rounds; 0: once an epoch
  std::uint64_t snapshot_every = 100;
  bool private_data = false;  ///< each member has data of its own: nothing is leased

  struct Pace {
    double lr = 0.0;        ///< of the commit
    double inner_lr = 0.0;  ///< of local steps
    double ratio = 1.0;     ///< that members select by
  };
  /// Where a run is.
  struct Progress {
    double epoch = 0.0;
    std::uint64_t round = 0;
    std::int64_t positions = 0;  ///< in an epoch; 0: data are private
  };
  std::function<Pace(const Progress&)> pace;
};

struct HubOptions {
  RoundRules rules;
  Terms terms;
  std::string settings;       ///< JSON for members: what the recipe is made of
  double norm_bound = 0.0;    ///< an update longer than so many medians is scaled to it; 0: off
  double lost_after = 300.0;  ///< seconds of silence after which a member's leases go to others
  double down_ratio = 0.0;    ///< of the hub's own selection; 0: as the members'
  std::size_t most_parameters = std::size_t{2} << 30;
  double poll = 25.0;  ///< a request waits at most so long
};

/// For whoever keeps figures of the run.
struct HubWatcher {
  std::function<void(const CommitLine&)> committed;
  std::function<void(const EvaluationNote&)> evaluated;
  std::function<void(const std::string&)> said;  ///< lines for people
};

class Hub {
 public:
  /// `folder` has the journal (kJournalFile) and snapshots. Goes on with the run that is in the
  /// journal, if there is one. Throws Error.
  Hub(std::filesystem::path folder, Journal& journal, HubOptions options, HubPlan plan,
      HubWatcher watcher);
  ~Hub();
  Hub(const Hub&) = delete;
  Hub& operator=(const Hub&) = delete;

  /// Answers now or later, by `respond`. Returns a number by which a waiting request can be given
  /// up; 0 where it was answered. Never throws for what the request is.
  std::uint64_t handle(const Request& request, double now, const Respond& respond);
  /// Seconds since 1970 at time 0 of the clock whose times the hub is given. 0 until it is said.
  void set_clock(double time_at_zero) noexcept;
  /// Whoever waits for this answer has gone.
  void give_up(std::uint64_t waiting) noexcept;
  /// Nobody waits any more.
  void give_up_all() noexcept;
  /// A connection over which this session spoke has ended, after give_up() of what waited on it.
  /// Where the session still waits for an answer, it speaks over another one. Never throws.
  void connection_lost(const std::string& session, double now);
  /// Closes what is due, answers who has waited long enough. Returns when to call it next. Never
  /// throws: where the disk fails, nothing more is committed, and status() says why.
  double tick(double now);

  /// Most bytes of a request's body, by what it asks for and whose token it has; 0: no such request
  /// or no right to it. Nothing of a body is read before.
  std::size_t body_limit(const Request& head);

  bool finished() const noexcept;
  std::uint64_t round() const noexcept;
  /// Members whose connection is there.
  std::size_t present() const noexcept;
  /// Null before the first member came.
  Replica* replica() noexcept;
  const Rounds& rounds() const noexcept;
  const Leases* leases() const noexcept;
  const HubPlan& plan() const noexcept;

  /// Why nothing can be committed any more; empty where all is well.
  const std::string& failure() const noexcept;

  /// Writes a snapshot now, so that the next start is quick.
  void save();
  /// What the page shows.
  nlohmann::json status(double now) const;
  /// The same for Prometheus.
  std::string metrics(double now) const;
  /// A request that was not even understood, or came with a wrong token. Never throws.
  void count_refused(const std::string& origin, const std::string& why, double now);

  struct Impl;  // hub_impl.h

 private:
  std::unique_ptr<Impl> impl_;
};

inline constexpr const char* kJournalFile = "hub.sqlite";
/// Where it is there, a new run begins with it: a packet that lists "tensors" as a model does, with
/// their values as byte strings, by name.
inline constexpr const char* kInitialFile = "initial.parameters";

}  // namespace dgc::hub
