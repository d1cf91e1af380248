#include "dgc/target.h"

#include <fmt/format.h>

#include <array>
#include <cstdlib>
#include <cstring>

#include "compress/kernels.h"
#include "dgc/error.h"

namespace dgc {
namespace compress {
namespace {

std::vector<TargetKernels> all_tables() {
  std::array<TargetKernels, 8> found{};
  const std::size_t count = vector_kernels(found.data(), found.size());
  std::vector<TargetKernels> tables(found.begin(),
                                    found.begin() + static_cast<std::ptrdiff_t>(count));
  tables.push_back({&scalar_kernels(), true});
  return tables;
}

}  // namespace

const Kernels& active_kernels() {
  const std::vector<TargetKernels> tables = all_tables();
  const char* const wanted = std::getenv("DGC_TARGET");
  std::string names;
  for (const TargetKernels& table : tables) {
    if (wanted == nullptr && table.supported) return *table.kernels;
    if (wanted != nullptr && table.supported && std::strcmp(table.kernels->name, wanted) == 0) {
      return *table.kernels;
    }
    if (table.supported) names += (names.empty() ? "" : ", ") + std::string(table.kernels->name);
  }
  throw Error(ErrorCode::unsupported_target, "DGC_TARGET", fmt::format("'{}'", wanted),
              "is not an instruction set of this build and machine",
              fmt::format("unset it or choose one of: {}", names));
}

}  // namespace compress

std::vector<Target> targets() {
  std::vector<Target> result;
  for (const compress::TargetKernels& table : compress::all_tables()) {
    result.push_back({table.kernels->name, table.supported});
  }
  return result;
}

std::string active_target() { return compress::active_kernels().name; }

}  // namespace dgc
