// A step is computing, coding and moving, one after the other: what overlaps with backward in
// practice is not counted on. Bytes are those of docs/exchange.md.
#include "plan/cost.h"

#include <algorithm>
#include <cmath>

#include "dgc/schedule.h"
#include "exchange/choose.h"
#include "exchange/shares.h"

namespace dgc::plan {
namespace {

/// dgc::Sgd exchanges a gradient in buckets of this many bytes.
constexpr double kBucketBytes = 25.0 * (1 << 20);

/// What a worker does in an exchange.
struct Traffic {
  double received = 0.0;  ///< bytes
  double link = 0.0;      ///< of them, over the node's link, with those of the node's other workers
  double inside = 0.0;    ///< of them, from workers of the same node
  double messages = 0.0;
  double rounds = 0.0;  ///< one after the other
};

struct Part {
  double encoded = 0.0;   ///< entries of the own message
  double entries = 0.0;   ///< received, decoded and added
  double whole = 0.0;     ///< elements copied into messages or added from them, without positions
  double placed = 0.0;    ///< entries laid out densely
  double slices = 0.0;    ///< elements laid out densely
  double elements = 0.0;  ///< selected from
  double dense = 0.0;     ///< averaged densely
};

exchange::Load sparse_load(const Scenario& setup, double share) {
  const auto elements =
      static_cast<std::uint64_t>(static_cast<double>(setup.model.sparse()) * share);
  return {elements, elements == 0 ? 0 : entries_at(setup.ratio, elements)};
}

/// Of `share` of the model.
double sparse_bytes(const Scenario& setup, double share) {
  const exchange::Load load = sparse_load(setup, share);
  if (load.elements == 0) return 0.0;
  // One frame is counted by the formula; the others add their headers.
  return exchange::allgather_bytes(load, setup.values, 2) + 12.0 * (setup.model.tensors - 1);
}

double whole_bytes(const Scenario& setup, double share) {
  return setup.whole_value_bytes * static_cast<double>(setup.model.one_dimensional) * share;
}

/// The link as the exchange sees it.
exchange::CostSetup exchange_setup(const Scenario& setup, int workers) {
  exchange::CostSetup seen{.workers = workers, .costs = setup.costs};
  seen.costs.link = {.bytes_per_second = setup.bandwidth * setup.payload / 8.0,
                     .delay = std::chrono::duration<double>(setup.latency)};
  return seen;
}

/// The exchange's name for a method that compresses.
Algorithm algorithm_of(Method method) {
  if (method == Method::automatic) return Algorithm::automatic;
  if (method == Method::allgather) return Algorithm::allgather;
  if (method == Method::owner) return Algorithm::owner;
  const auto all = algorithms();
  return *std::find_if(all.begin(), all.end(), exchange::in_shares);
}

/// What `auto` sends densely: tensors of one dimension, and the others.
struct Apart {
  bool whole;
  bool rest;
};
Apart chosen_by_auto(const Scenario& setup, int workers) {
  const std::uint64_t n = setup.model.one_dimensional;
  const exchange::Item items[] = {{{n, n}, ValueType::fp32},
                                  {sparse_load(setup, 1.0), setup.values}};
  const auto choice = exchange::choose(exchange_setup(setup, workers), items, false);
  return {choice.dense[0], choice.dense[1]};
}

/// Bytes that go to workers anywhere, evenly: some of them are on the same node.
void spread(Traffic& traffic, int nodes, int per_node) {
  const double peers = nodes * per_node - 1.0;
  if (peers <= 0.0) return;
  const double near = (per_node - 1.0) / peers;
  traffic.inside = traffic.received * near;
  traffic.link = traffic.received * (1.0 - near) * per_node;
}

/// Averaged inside each node first, as topology-aware libraries do.
Traffic dense_traffic(double bytes, int nodes, int per_node) {
  const double h = nodes;
  const double l = per_node;
  Traffic traffic;
  traffic.link = 2.0 * bytes * (h - 1) / h;
  traffic.inside = 2.0 * bytes * (l - 1) / l;
  traffic.received = traffic.link / l + traffic.inside;
  traffic.rounds = 2.0 * ((h > 1 ? 1.0 : 0.0) + (l > 1 ? 1.0 : 0.0));
  traffic.messages = 2.0 * ((h - 1) + (l - 1));
  return traffic;
}

Traffic sparse_traffic(const Scenario& setup, Method method, int nodes, Part& part) {
  const int l = setup.workers_per_node;
  const int n = nodes * l;
  const double whole = static_cast<double>(setup.model.one_dimensional);
  const auto k = static_cast<double>(sparse_load(setup, 1.0).entries);
  const double message = message_bytes(setup);
  Traffic traffic;
  part.elements = static_cast<double>(setup.model.sparse());
  switch (method) {
    case Method::owner:
      traffic.received = exchange::received_bytes(Algorithm::owner, message, 0.0, n);
      traffic.messages = exchange::sent_messages(Algorithm::owner, true, false, n);
      traffic.rounds = 2.0;
      // A worker adds up and selects again in its own range.
      part.encoded = k * (1.0 + 1.0 / n);
      part.entries = 2.0 * k;
      part.whole = 3.0 * whole;
      part.elements *= 1.0 + 1.0 / n;
      spread(traffic, nodes, l);
      return traffic;
    case Method::shares: {
      const double share = 1.0 / l;
      const double mine =
          sparse_bytes(setup, share) + whole_bytes(setup, share) + exchange::kEmptyMessage;
      const auto all = static_cast<double>(setup.model.parameters);
      traffic.received = exchange::shares_bytes(mine, all, n, nodes);
      traffic.messages = exchange::shares_messages(n, nodes);
      const double across = (nodes - 1.0) * (mine + 8.0);
      traffic.link = across * l;
      traffic.inside = traffic.received - across;
      traffic.rounds = 4.0 + 2.0 * nodes;
      part.encoded = k * share;
      part.entries = k * nodes;
      part.whole = (share + nodes) * whole;
      part.elements *= share;
      part.dense = all;
      return traffic;
    }
    case Method::automatic:
    case Method::allgather:
    default: {
      // `auto` sends densely what that makes less of: with many workers, in the end everything.
      const bool choose = method == Method::automatic;
      const auto [whole_apart, rest_apart] =
          choose ? chosen_by_auto(setup, n) : Apart{false, false};
      const double sent = (whole_apart ? 0.0 : whole_bytes(setup, 1.0)) +
                          (rest_apart ? 0.0 : sparse_bytes(setup, 1.0));
      const double framed = sent > 0.0 ? sent + exchange::kEmptyMessage : 0.0;
      const double slices = (whole_apart ? whole : 0.0) + (rest_apart ? part.elements : 0.0);
      part.slices = slices;
      part.placed = rest_apart ? k : 0.0;
      part.encoded = rest_apart ? 0.0 : k;
      part.entries = rest_apart ? 0.0 : n * k;
      part.whole = whole_apart ? 0.0 : (n + 1.0) * whole;
      const bool apart = slices > 0.0;
      const Algorithm algorithm = algorithm_of(method);
      traffic.received = exchange::received_bytes(algorithm, framed, slices, n);
      traffic.messages = exchange::sent_messages(algorithm, sent > 0.0, apart, n);
      traffic.rounds = apart ? 2.0 : 1.0;
      spread(traffic, nodes, l);
      return traffic;
    }
  }
}

}  // namespace

std::string title_of(Method method) {
  if (method == Method::dense) return "dense fp32";
  if (method == Method::dense16) return "dense fp16";
  return "dgc " + std::string(name_of(algorithm_of(method)));
}

bool compresses(Method method) noexcept {
  return method != Method::dense && method != Method::dense16;
}

std::vector<Method> methods_for(const Scenario& setup) {
  std::vector<Method> methods(std::begin(kMethods), std::end(kMethods));
  if (setup.workers_per_node == 1) methods.pop_back();
  return methods;
}

double message_bytes(const Scenario& setup) {
  return sparse_bytes(setup, 1.0) + whole_bytes(setup, 1.0) + exchange::kEmptyMessage;
}

Prediction predict(const Scenario& setup, Method method, int nodes) {
  const Costs& costs = setup.costs;
  const int workers = nodes * setup.workers_per_node;
  const auto n = static_cast<double>(setup.model.parameters);
  // Workers that share cores take turns.
  const double turns =
      setup.shared_cores > 0 ? std::max(1.0, static_cast<double>(workers) / setup.shared_cores) : 1;
  Prediction p{.method = method, .nodes = nodes, .workers = workers};
  p.compute = setup.compute * turns;
  if (workers == 1) {
    p.step = p.compute;
    return p;
  }
  Traffic traffic;
  Part part;
  if (compresses(method)) {
    traffic = sparse_traffic(setup, method, nodes, part);
    p.message_bytes = message_bytes(setup);
  } else {
    // 16-bit values have a byte of scale for each 256.
    p.message_bytes = method == Method::dense ? 4.0 * n : n * (2.0 + 1.0 / 256.0);
    traffic = dense_traffic(p.message_bytes, nodes, setup.workers_per_node);
    part.dense = n;
  }
  // A clipped step is known after backward only, and goes as one bucket.
  const double buckets = setup.model.clipped ? 1.0 : std::ceil(4.0 * n / kBucketBytes);
  traffic.rounds *= buckets;
  traffic.messages *= buckets;

  const double dense_cost = method == Method::dense16 ? costs.dense16 : costs.dense;
  p.coding =
      turns * (part.elements * costs.select + part.encoded * costs.encode +
               part.entries * costs.entry + part.placed * costs.place + part.slices * costs.slice +
               part.whole * costs.dense + part.dense * dense_cost);
  const double wire = 8.0 * traffic.link / (setup.bandwidth * setup.payload) +
                      8.0 * traffic.inside / setup.inside + traffic.rounds * setup.latency;
  // What is sent is handled as well as what is received.
  const double handling = turns * (2.0 * traffic.received * costs.byte +
                                   traffic.messages * costs.message + traffic.rounds * costs.round);
  // A network card moves bytes while cores go on; cores that stand for the hosts' network cards do
  // one thing after the other.
  p.network = setup.shared_cores > 0 ? wire + handling : std::max(wire, handling);
  p.step = p.compute + p.coding + p.network;
  p.speedup = workers * setup.compute / p.step;
  p.efficiency = p.speedup / workers;
  p.received_bytes = traffic.received;
  p.link_bytes = traffic.link;
  return p;
}

}  // namespace dgc::plan
