// Layers that compute in bf16: libtorch's autocast. Convolutions and matrix products take bf16 and
// give bf16; sums over many values, such as the loss, stay fp32. Parameters and their gradients are
// fp32, so that everything after backward is as without it.
#pragma once

#include <ATen/autocast_mode.h>
#include <torch/version.h>

namespace dgc::train {

/// Forward passes of this thread, while it lives. Backward passes follow what forward did.
class MixedPrecision {
 public:
  explicit MixedPrecision(bool on) : on_(on) {
    if (!on_) return;
    at::autocast::increment_nesting();
    switch_to(true);
  }
  ~MixedPrecision() {
    if (!on_) return;
    switch_to(false);
    // Or the next step would compute with the parameters of this one.
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  }
  MixedPrecision(const MixedPrecision&) = delete;
  MixedPrecision& operator=(const MixedPrecision&) = delete;

 private:
  static void switch_to(bool on) {
#if TORCH_VERSION_MAJOR >= 2
    at::autocast::set_autocast_enabled(at::kCPU, on);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
#else
    at::autocast::set_cpu_enabled(on);
    at::autocast::set_autocast_cpu_dtype(at::kBFloat16);
#endif
  }

  const bool on_;
};

}  // namespace dgc::train
