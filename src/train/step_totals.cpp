#include "train/step_totals.h"

namespace dgc::train {
namespace {

void add(Sent& sent, const StepStats& stats) {
  sent.message_bytes += stats.message_bytes;
  sent.bytes_up += stats.bytes_up;
  sent.bytes_down += stats.bytes_down;
  sent.dense_bytes += stats.message_ratio * static_cast<double>(stats.message_bytes);
}

bool is_steady(const Stepper& stepper) { return stepper.steps() > stepper.warmup_steps(); }

}  // namespace

void count_step(Totals& totals, const Stepper& stepper, double ring_bytes, double seconds) {
  for (Sent* sent : {&totals.all, &totals.steady}) {
    if (sent == &totals.steady && !is_steady(stepper)) continue;
    ++sent->steps;
    sent->ring_bytes += ring_bytes;
  }
  if (stepper.exchanged()) {
    count_exchange(totals, stepper, seconds);
  } else {
    totals.times.apply += seconds;  // a local step
  }
}

void count_exchange(Totals& totals, const Stepper& stepper, double seconds) {
  const StepStats& stats = stepper.stats();
  Times& times = totals.times;
  times.waiting += stats.waiting;
  times.apply += stats.apply;
  times.compress += stats.compress + stats.encode;
  times.exchange += stats.exchange;
  times.other += seconds - stats.waiting - stats.apply;
  add(totals.all, stats);
  if (is_steady(stepper)) add(totals.steady, stats);
}

}  // namespace dgc::train
