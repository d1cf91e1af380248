// A run on a LocalHub that learns something small, watched after every event. check() then says
// whether the hub kept its promises: replicas are the same bit for bit and follow from the commits,
// nothing that was accumulated is lost or counted twice, and each example was done once.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/temporary_folder.h"
#include "hub/local_hub.h"

namespace dgc::test {

inline const std::vector<TensorSpec> kToyModel = {TensorSpec::of("w", {16, 25}),
                                                  TensorSpec::of("b", {7})};
inline const std::vector<TensorSpec> kToyBuffers = {TensorSpec::of("mean", {5})};
inline constexpr std::size_t kToySize = 16 * 25 + 7;

struct ToyPlan {
  std::int64_t positions = 960, batch = 32;
  double epochs = 4.0, lr = 0.05, inner_lr = 0.0, ratio = 0.05;
  hub::Terms terms = {
      .momentum = 0.0f, .values = ValueType::fp32, .save_every = 4, .check_every = 1};
  hub::RoundRules rules = {};
  double norm_bound = 0.0, lost_after = 60.0;
  std::uint64_t rounds = 0, evaluate_every = 0, snapshot_every = 10;
  bool buffers = false, private_data = false;
  int local_steps = 0;  ///< a member sends what so many steps at inner_lr change
};

/// How a member works and is connected.
struct Pace {
  double seconds_each = 0.001;  ///< of computing, for an example
  double delay = 0.001;         ///< of its link, one way
  double bytes_per_second = 1e9;
  float wrong = 1.0f;  ///< its gradients are multiplied by this
  bool evaluates = true;
};

/// Where example `position` pulls parameter i to.
float toy_pull(std::int64_t position, std::size_t i);

class Toy {
 public:
  explicit Toy(const ToyPlan& plan);

  /// A member comes, or comes back after kill() or leave() with what it had saved.
  void join(const std::string& name, const Pace& pace = {});
  /// Until all that joined have left at the end of the run.
  bool finish(double seconds = 10'000.0);
  bool run(double seconds);
  bool run_until(double seconds, const std::function<bool()>& done);
  bool run_rounds(std::uint64_t more);

  /// Everybody comes back once more and leaves; then all promises are tested. Members in `gone`
  /// cannot come back: what the hub has given to others is taken as lost.
  void check(const std::set<std::string>& gone = {});

  /// A copy of the hub's folder, with the hub stopped for a moment.
  void copy_hub(const std::filesystem::path& to);
  /// Starts the hub from such a copy. check() cannot be used any more: what came since is lost.
  void restore_hub(const std::filesystem::path& from);

  hub::Member& member(const std::string& name) { return *local->member(name); }
  /// Messages of a member that are in commits.
  std::uint64_t committed(const std::string& name) const;
  /// Messages that a member computed and lost, because it went back to what it had saved.
  std::uint64_t lost(const std::string& name) const;
  /// Of the parameters to where all examples together pull.
  double distance();
  std::filesystem::path folder() const { return folder_.path(); }

  const ToyPlan plan;
  std::vector<hub::CommitLine> lines;
  std::vector<hub::Commit> commits;  ///< with Down::select: with the parts that the hub kept
  std::vector<hub::EvaluationNote> evaluations;
  std::vector<std::string> said;
  std::map<std::string, std::vector<hub::Member::WentBack>> losses;  ///< that members named
  std::map<std::string, hub::Member::HubWentBack> hub_backs;         ///< that members noticed
  /// Called in place of the usual way to compute a gradient.
  std::function<void(hub::Member&, std::vector<float>&)> gradient;
  std::optional<hub::LocalHub> local;
  std::optional<hub::Journal> journal;  // a second connection, to look

 private:
  /// What a message brought into its member's residual, by element.
  struct Increment {
    std::vector<double> values;
    hub::Lease lease;
    bool lost = false;
  };

  hub::Contribution compute(const std::string& name, hub::Member& member);
  void note_increment(const std::string& name, hub::Member& member, const std::vector<float>& g);
  void observe();
  void end_all(const std::set<std::string>& gone);
  void check_replay();
  void check_conserved(const std::set<std::string>& gone);
  void check_examples();
  void forget_after(const std::string& name, std::uint64_t sequence);
  std::vector<double> residual_of(const std::string& name, bool gone);

  TemporaryFolder folder_;
  std::map<std::string, Pace> paces_;
  std::map<std::string, std::map<std::uint64_t, Increment>> increments_;
  std::map<std::string, std::uint64_t> seen_;    // rounds whose parameters were compared
  std::vector<std::uint64_t> hashes_;            // by round
  std::map<std::uint64_t, hub::Inbox> inboxes_;  // Down::select: who sent what, by round
  std::optional<hub::Replica> initial_;
  std::vector<float> gradient_, buffers_;
  bool restored_ = false;
};

/// Where tests have their files: in memory, where there is such a folder.
std::filesystem::path fast_folder();

}  // namespace dgc::test
