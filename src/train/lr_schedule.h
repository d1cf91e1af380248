// How the learning rate changes over a run.
#pragma once

#include <string>
#include <vector>

namespace dgc::train {

/// A factor for the learning rate at a time in epochs, which may be fractions. Immutable but for
/// what `plateau` remembers, which a checkpoint has to keep: state() and set_state().
class LrSchedule {
 public:
  /// "constant", "cosine", "step:0.1@30,60,80", "anneal:1.1", "plateau:4". Throws
  /// Error(invalid_argument) with what is allowed.
  static LrSchedule parse(const std::string& text);

  /// `epochs` are those of the whole run, `warmup` those in which the rate rises from a tenth.
  double factor(double epoch, double epochs, double warmup) const;

  /// After each evaluation. Divides once more when `loss` is not the best so far.
  void evaluated(double loss);

  struct State {
    double factor = 1.0;
    double best = 0.0;
    bool any = false;
  };
  const State& state() const noexcept { return state_; }
  void set_state(const State& state) noexcept { state_ = state; }

 private:
  enum class Kind { constant, cosine, step, anneal, plateau };
  Kind kind_ = Kind::constant;
  double by_ = 1.0;
  std::vector<double> at_;
  State state_;
};

}  // namespace dgc::train
