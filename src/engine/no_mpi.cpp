#include "dgc/engines.h"
#include "engine/compiled.h"

namespace dgc {

bool detail::has_mpi() noexcept { return false; }

std::unique_ptr<Group> make_mpi_group(std::chrono::milliseconds, const std::string&) {
  throw Error(ErrorCode::engine_unavailable, "mpi", "engine", "is not in this build of dgc",
              "install libopenmpi-dev and openmpi-bin and configure with -DDGC_WITH_MPI=ON");
}

}  // namespace dgc
