#include "dgc/error.h"
#include "plan_measure.h"

namespace dgc::app {

double measured_compute(const std::string&, int, int) {
  throw Error(ErrorCode::engine_unavailable, "plan", "--measure", "libtorch is not in this build",
              "say --compute, or build with -DDGC_WITH_TORCH=ON (Debian: libtorch-dev)");
}

}  // namespace dgc::app
