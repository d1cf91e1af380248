// The model that tests of the exchange train, and its gradients.
#pragma once

#include "support/helpers.h"

namespace dgc::test {

/// Small, with all kinds of tensors.
inline const std::vector<TensorSpec> kModel = {sparse("conv", 3000), TensorSpec::of("bias", {33}),
                                               sparse("fc", 10'000), sparse("tiny", 2)};

inline std::vector<std::span<float>> spans_of(Tensors& tensors) {
  return {tensors.begin(), tensors.end()};
}
inline std::vector<Gradient> gradients_of(const Tensors& tensors) {
  std::vector<Gradient> list;
  for (std::size_t i = 0; i < tensors.size(); ++i) list.push_back({i, tensors[i]});
  return list;
}
inline Tensors zeros(const std::vector<TensorSpec>& model) {
  Tensors tensors;
  for (const TensorSpec& spec : model) tensors.emplace_back(spec.elements(), 0.0f);
  return tensors;
}
/// Of a rank's gradients in a step.
inline std::mt19937 random_of(int rank, int step) {
  return std::mt19937(static_cast<std::uint32_t>(rank * 10'007 + step));
}

}  // namespace dgc::test
