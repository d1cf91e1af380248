#include "process/tuning.h"

#include <dlfcn.h>
#include <malloc.h>

#include <climits>
#include <cstdlib>
#include <string_view>

namespace dgc::process {
namespace {

constexpr const char* kVariable = "OPENBLAS_CORETYPE";

/// The name that OpenBLAS has for the newest kernels that this processor can run, or nullptr.
const char* best_core() noexcept {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    return "SkylakeX";
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return "Haswell";
#endif
  return nullptr;
}

/// Asks the library that libtorch will load as BLAS. It stays loaded; `dgc` ends or is replaced
/// soon after.
const char* blas_core() {
  void* const blas = ::dlopen("libblas.so.3", RTLD_LAZY | RTLD_LOCAL);
  if (blas == nullptr) return "";
  using CoreName = char* (*)();
  auto* const core_name = reinterpret_cast<CoreName>(::dlsym(blas, "openblas_get_corename"));
  return core_name == nullptr ? "" : core_name();
}

bool underestimated() {
  constexpr std::string_view kUnknown = "Prescott";
  return std::getenv(kVariable) == nullptr && best_core() != nullptr && blas_core() == kUnknown;
}

}  // namespace

const char* fast_blas_core() { return underestimated() ? best_core() : blas_core(); }

void choose_fast_blas() {
  if (underestimated()) ::setenv(kVariable, best_core(), 1);
}

void keep_freed_memory() noexcept {
#ifdef M_MMAP_THRESHOLD
  ::mallopt(M_MMAP_THRESHOLD, 1 << 30);
  ::mallopt(M_TRIM_THRESHOLD, INT_MAX);
#endif
}

}  // namespace dgc::process
