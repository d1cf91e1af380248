#include "train/summary.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/sysinfo.h>

#include <fstream>

#include "dgc/version.h"

namespace dgc::train {
namespace {

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

}  // namespace

Summary summary_head(const Settings& settings) {
  Summary summary;
  summary.dgc_version = DGC_VERSION;
  summary.recipe = settings.recipe;
  summary.seed = static_cast<double>(settings.seed);
  summary.date = fmt::format("{:%FT%TZ}", fmt::gmtime(std::chrono::system_clock::now()));
  summary.cpu = cpu_name();
  summary.cores = ::get_nprocs();
  return summary;
}

}  // namespace dgc::train
