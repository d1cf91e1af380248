// Costs of tensors add up, so that each tensor can be looked at alone. But dense slices need a
// second round, once for the bucket: if all that they save together is less, nothing goes densely.
#include "exchange/choose.h"

namespace dgc::exchange {

Choice choose(const CostSetup& setup, std::span<const Item> items, bool reselect) {
  Choice choice{.dense = std::vector<bool>(items.size(), false),
                .seconds = allgather_total(setup, items)};
  double saved = 0.0;
  std::vector<bool> dense(items.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    const double here = sparse_seconds(setup, items[i]) - dense_seconds(setup, items[i]);
    dense[i] = here > 0.0;
    if (dense[i]) saved += here;
  }
  const double round = round_seconds(setup);
  if (saved > round) {
    choice.dense = std::move(dense);
    choice.seconds += round - saved;
  }
  if (!reselect || items.empty()) return choice;
  const double owner = owner_total(setup, items);
  if (owner >= choice.seconds) return choice;
  return {.owner = true, .dense = std::vector<bool>(items.size(), false), .seconds = owner};
}

}  // namespace dgc::exchange
