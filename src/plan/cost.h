// What a training step costs, predicted. docs/plan.md has the equations, and where the constants
// come from.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dgc/costs.h"
#include "dgc/wire.h"
#include "models/catalogue.h"

namespace dgc::plan {

/// What is planned for.
struct Scenario {
  models::Model model;
  double compute = 0.0;  ///< seconds of a step of one worker, alone
  double ratio = 0.001;
  ValueType values = ValueType::fp16;
  double whole_value_bytes = 4.0;  ///< of a value of a tensor that is sent whole
  double bandwidth = 1e9;          ///< bit/s of a node's link, each way
  double latency = 50e-6;          ///< seconds of one message to another node
  double payload = 0.94;     ///< share of the bandwidth: 1448 of 1538 bytes of an Ethernet frame
  int workers_per_node = 1;  ///< each has the same number
  double inside = 100e9;     ///< bit/s between workers of a node
  /// All workers of all nodes share this many cores (nodes are namespaces or containers of one
  /// machine), one thread each. 0: every worker has its own.
  int shared_cores = 0;
  Costs costs;  ///< of one core; its link is not looked at
};

enum class Method { dense, dense16, automatic, allgather, owner, shares };
inline constexpr Method kMethods[] = {Method::dense,     Method::dense16, Method::automatic,
                                      Method::allgather, Method::owner,   Method::shares};
/// "dense fp32", "dgc owner" …
std::string title_of(Method method);
bool compresses(Method method) noexcept;

/// Seconds of a step, and where they go.
struct Prediction {
  Method method = Method::dense;
  int nodes = 1;
  int workers = 1;
  double compute = 0.0;
  double coding = 0.0;   ///< selecting, encoding, decoding, adding
  double network = 0.0;  ///< moving bytes and waiting for them
  double step = 0.0;
  double speedup = 1.0;         ///< examples a second, against one worker alone
  double efficiency = 1.0;      ///< speedup over the number of workers
  double message_bytes = 0.0;   ///< that a worker emits
  double received_bytes = 0.0;  ///< by a worker
  double link_bytes = 0.0;      ///< over a node's link, each way
};

/// Bytes of a worker's message.
double message_bytes(const Scenario& setup);
/// Shares are those of a node's workers: with one on each node they are what allgather is.
Prediction predict(const Scenario& setup, Method method, int nodes);
/// All methods that make a difference in this setup.
std::vector<Method> methods_for(const Scenario& setup);

}  // namespace dgc::plan
