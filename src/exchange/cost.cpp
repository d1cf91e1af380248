// A round is a delay. Bytes are those of exchange/layout.h, over the link. Work is by entries and
// elements; workers do it at the same time. With N workers, n elements and k entries of each:
//
//   all-gather  1 round   encode k, add N·k
//   dense       2 rounds  place k, lay out and add n
//   owner       2 rounds  encode k and k/N, add 2·k, select again from n/N
//
// Everything selects from n first.
#include "exchange/cost.h"

#include <algorithm>

namespace dgc::exchange {
namespace {

bool whole(const Item& item) { return item.load.entries == item.load.elements; }

double encode_seconds(const CostSetup& setup, const Item& item) {
  // A tensor sent whole has no positions: it is copied.
  const double each = whole(item) ? setup.costs.dense : setup.costs.encode;
  return each * static_cast<double>(item.load.entries);
}

double add_seconds(const CostSetup& setup, const Item& item) {
  const double each = whole(item) ? setup.costs.dense : setup.costs.entry;
  return each * static_cast<double>(item.load.entries);
}

double select_seconds(const CostSetup& setup, const Item& item) {
  return whole(item) ? 0.0 : setup.costs.select * static_cast<double>(item.load.elements);
}

template <typename Each>
double sum_of(std::span<const Item> items, Each each) {
  double sum = 0.0;
  for (const Item& item : items) sum += each(item);
  return sum;
}

double selecting(const CostSetup& setup, std::span<const Item> items) {
  return sum_of(items, [&](const Item& item) { return select_seconds(setup, item); });
}

}  // namespace

Costs costs_over(const Link& link) {
  Costs costs;
  costs.link = link;
  return costs;
}

double round_seconds(const CostSetup& setup) {
  const Costs& c = setup.costs;
  return c.link.delay.count() + c.round + c.message * (setup.workers - 1);
}

double moving_seconds(const CostSetup& setup, double bytes) {
  const Costs& c = setup.costs;
  // A network card moves bytes while cores go on; what is sent is handled as well.
  return bytes * std::max(1.0 / c.link.bytes_per_second, 2.0 * c.byte);
}

double sparse_seconds(const CostSetup& setup, const Item& item) {
  return moving_seconds(setup, allgather_bytes(item.load, item.values, setup.workers)) +
         encode_seconds(setup, item) + setup.workers * add_seconds(setup, item);
}

double dense_seconds(const CostSetup& setup, const Item& item) {
  const Costs& c = setup.costs;
  const double each =
      c.slice + (setup.dense_transport == ValueType::fp32 ? 0.0 : c.dense16 - c.dense);
  const double placed = whole(item) ? 0.0 : c.place * static_cast<double>(item.load.entries);
  return moving_seconds(setup, dense_bytes(item.load, setup.dense_transport, setup.workers)) +
         each * static_cast<double>(item.load.elements) + placed;
}

double allgather_total(const CostSetup& setup, std::span<const Item> items) {
  return round_seconds(setup) + selecting(setup, items) +
         sum_of(items, [&](const Item& item) { return sparse_seconds(setup, item); });
}

double dense_total(const CostSetup& setup, std::span<const Item> items) {
  return 2.0 * round_seconds(setup) + selecting(setup, items) +
         sum_of(items, [&](const Item& item) { return dense_seconds(setup, item); });
}

double owner_total(const CostSetup& setup, std::span<const Item> items) {
  const double n = setup.workers;
  double message = static_cast<double>(kMessageOverhead);
  double work = 0.0;
  for (const Item& item : items) {
    message += allgather_bytes(item.load, item.values, 2);
    work += (1.0 + 1.0 / n) * (encode_seconds(setup, item) + select_seconds(setup, item)) +
            2.0 * add_seconds(setup, item);
  }
  const double bytes = received_bytes(Algorithm::owner, message, 0.0, setup.workers);
  return 2.0 * round_seconds(setup) + work + moving_seconds(setup, bytes);
}

}  // namespace dgc::exchange
