// What optimizers say of their steps and of their tensors.
#pragma once

#include <span>

#include "dgc/sgd.h"
#include "torch/parameters.h"

namespace dgc::sgd {

/// Fills in what the exchange knows of a step; `elements` are those of the trained parameters.
void describe_step(const Collected& collected, const Exchange& exchange, std::uint64_t elements,
                   int workers, StepStats& stats);

/// Tensors, buckets and schedule of a report.
SgdReport describe_tensors(std::span<const Parameter> parameters, const Buckets& plan,
                           const Exchange& exchange, const CompressOptions& compress);

}  // namespace dgc::sgd
