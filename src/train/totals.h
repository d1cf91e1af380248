// What a run adds up over its steps, for its summary; part of its checkpoints.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>

namespace dgc::train {

/// Seconds. compress and exchange run beside compute where overlap is on; the others add up to the
/// whole time.
struct Times {
  double data = 0.0;     ///< waiting for a batch
  double compute = 0.0;  ///< forward and backward
  double waiting = 0.0;  ///< for gradients of others, after backward
  double apply = 0.0;
  double evaluate = 0.0;
  double checkpoint = 0.0;
  double other = 0.0;
  double compress = 0.0;
  double exchange = 0.0;

  double training() const { return data + compute + waiting + apply + other; }
  double total() const { return training() + evaluate + checkpoint; }
};

/// Of one worker.
struct Sent {
  std::uint64_t steps = 0;
  std::uint64_t message_bytes = 0;
  std::uint64_t bytes_up = 0;
  std::uint64_t bytes_down = 0;
  double dense_bytes = 0.0;  ///< what the messages would have been as fp32, whole
  double ring_bytes = 0.0;   ///< what a dense ring among as many workers would have brought down
};

struct Totals {
  Times times;
  Sent all;
  Sent steady;  ///< of the steps at the final ratio
};

nlohmann::json to_json(const Totals& totals);
Totals totals_from(const nlohmann::json& json);
nlohmann::ordered_json to_json(const Times& times);

}  // namespace dgc::train
