#include "bench.h"
#include "dgc/error.h"

namespace dgc::app {

void add_bench_torch(CLI::App& bench) {
  auto* command = bench.add_subcommand("torch", "A training step of libtorch (not in this build)");
  command->footer("Example:\n  dgc bench torch --help");
  command->allow_extras();
  command->callback([] {
    throw Error(ErrorCode::engine_unavailable, "bench torch", "libtorch", "is not in this build",
                "install libtorch-dev and build with -DDGC_WITH_TORCH=ON");
  });
}

}  // namespace dgc::app
