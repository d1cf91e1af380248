#include "tuning.h"

#include <dlfcn.h>
#include <malloc.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

namespace dgc::app {
namespace {

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

constexpr const char* kVariable = "OPENBLAS_CORETYPE";

const char* blas_core() noexcept {
  // It comes with libtorch, as whatever implements BLAS there: not linked by name.
  using CoreName = char* (*)();
  auto* const core_name =
      reinterpret_cast<CoreName>(::dlsym(RTLD_DEFAULT, "openblas_get_corename"));
  return core_name == nullptr ? "" : core_name();
}

bool underestimated() noexcept {
  constexpr std::string_view kUnknown = "Prescott";
  return std::getenv(kVariable) == nullptr && blas_core() == kUnknown && best_core() != nullptr;
}

}  // namespace

const char* fast_blas_core() noexcept { return underestimated() ? best_core() : blas_core(); }

void use_fast_blas() {
  if (!underestimated()) return;
  // It looks at the variable while it is loaded, before main: only a new program can see it. By its
  // path, or it would be called "exe" in lists of processes.
  char path[PATH_MAX] = {};
  if (::readlink("/proc/self/exe", path, sizeof path - 1) <= 0) return;
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');) words.push_back(word);
  if (words.empty()) return;
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  ::setenv(kVariable, best_core(), 1);
  ::execv(path, arguments.data());
  ::unsetenv(kVariable);  // it could not be run: slower, but right
}

void keep_freed_memory() noexcept {
#ifdef M_MMAP_THRESHOLD
  ::mallopt(M_MMAP_THRESHOLD, 1 << 30);
  ::mallopt(M_TRIM_THRESHOLD, INT_MAX);
#endif
}

}  // namespace dgc::app
