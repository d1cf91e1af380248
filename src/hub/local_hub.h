// A hub and its members in one process, on links and a clock that are computed: the same code as
// over the network, in milliseconds and without chance. For tests, and for questions such as what a
// thousand members do.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <string>
#include <vector>

#include "dgc/link.h"
#include "hub/hub.h"
#include "hub/member.h"

namespace dgc::hub {

class LocalHub {
 public:
  struct Worker {
    /// Gradients of member.lease() at member.replica(); their memory stays until the next call.
    std::function<Contribution(Member&)> compute;
    double seconds_each = 0.01;  ///< that computing takes, for a position
    bool evaluates = true;
    Link link{.bytes_per_second = 1e9, .delay = std::chrono::duration<double>(0.001)};
    /// Called once, before the member joins: parameters to begin with, where nobody has any.
    std::function<void(Member&)> begin;
  };
  struct Options {
    HubOptions hub;
    HubPlan plan;
    std::vector<TensorSpec> model, buffers;
    std::int64_t positions = 1;
    HubWatcher watcher;
  };

  /// Hub and members have folders below this one.
  LocalHub(std::filesystem::path folder, Options options);
  ~LocalHub();

  double now() const noexcept { return now_; }
  /// Seconds of processor time that the hub has used so far, apart from its members.
  double hub_seconds() const noexcept { return hub_seconds_; }
  Hub* hub() noexcept { return hub_.get(); }
  /// Null where it is not running.
  Member* member(const std::string& name) noexcept;

  /// A member comes, or comes back with what it had saved.
  void join(const std::string& name, Worker worker);
  /// It goes as with Ctrl-C.
  void leave(const std::string& name);
  /// Its process ends at once.
  void kill(const std::string& name);
  /// Nothing passes between it and the hub for so long; both live.
  void cut(const std::string& name, double seconds);
  /// It does nothing for so long, as with SIGSTOP.
  void stall(const std::string& name, double seconds);
  void kill_hub();
  void start_hub();

  /// Until `done`, checked after every event, or so many seconds of its clock have passed. False in
  /// the second case.
  bool run(double seconds, const std::function<bool()>& done);

 private:
  struct Place {
    Worker worker;
    std::unique_ptr<Member> member;  // null: not running
    std::uint64_t life = 0;          // events of an earlier one are void
    std::uint64_t asked = 0;         // requests so far: answers to an earlier one are void
    std::uint64_t waiting = 0;       // the hub's number of the request that waits for its answer
    double cut_until = 0.0, stalled_until = 0.0;
    Ask ask;
  };
  struct Event {
    double time;
    std::uint64_t order;
    std::function<void()> what;
    bool operator<(const Event& other) const {
      return time != other.time ? time > other.time : order > other.order;
    }
  };

  void at(double time, std::function<void()> what);
  void go_on(const std::string& name);
  void send(const std::string& name);
  void tick();
  /// What the hub does; its time is counted.
  template <typename Work>
  void at_hub(Work&& work);
  double travel(const Place& place, std::size_t bytes) const;

  std::filesystem::path folder_;
  Options options_;
  std::unique_ptr<Journal> journal_;
  std::unique_ptr<Hub> hub_;
  std::uint64_t hub_life_ = 0, ticks_ = 0;
  std::map<std::string, Place> places_;
  std::map<std::string, std::string> tokens_;
  std::priority_queue<Event> events_;
  std::uint64_t order_ = 0;
  double now_ = 1.0;
  double hub_seconds_ = 0.0;
};

}  // namespace dgc::hub
