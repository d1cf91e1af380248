// Predicted seconds of a bucket's exchange, by each way it can go. Pure functions of sizes and
// constants, so that all ranks predict the same.
#pragma once

#include <span>

#include "dgc/costs.h"
#include "exchange/layout.h"

namespace dgc::exchange {

/// A tensor of a bucket.
struct Item {
  Load load;
  ValueType values;  ///< of its entries in a message
};

/// What is the same for all tensors.
struct CostSetup {
  int workers = 1;
  ValueType dense_transport = ValueType::fp32;
  Costs costs;
};

/// The defaults, over a link that is given.
Costs costs_over(const Link& link);

/// One round: a message from each to each takes one delay.
double round_seconds(const CostSetup& setup);
/// That many bytes received by a worker, and as many sent.
double moving_seconds(const CostSetup& setup, double bytes);

/// What a tensor adds to a bucket, beside its rounds: in the messages of an all-gather, or as a
/// dense slice.
double sparse_seconds(const CostSetup& setup, const Item& item);
double dense_seconds(const CostSetup& setup, const Item& item);

/// A whole bucket: selecting, coding and moving. All-gather takes one round, the others two.
double allgather_total(const CostSetup& setup, std::span<const Item> items);
double dense_total(const CostSetup& setup, std::span<const Item> items);
double owner_total(const CostSetup& setup, std::span<const Item> items);

}  // namespace dgc::exchange
