#include "command.h"
#include "dgc/error.h"

namespace dgc::app {

void add_sizes(CLI::App& app) {
  auto* command =
      app.add_subcommand("sizes", "Measure the messages of the paper's models (not in this build)");
  command->allow_extras();
  command->callback([] {
    throw Error(ErrorCode::engine_unavailable, "sizes", "libtorch", "is not in this build",
                "build with -DDGC_WITH_TORCH=ON (Debian: libtorch-dev)");
  });
}

}  // namespace dgc::app
