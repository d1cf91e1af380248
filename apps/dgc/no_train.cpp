#include "command.h"
#include "dgc/error.h"

namespace dgc::app {

void add_train(CLI::App& app) {
  auto* command = app.add_subcommand("train", "Train a model (not in this build)");
  command->allow_extras();
  command->callback([] {
    throw Error(ErrorCode::engine_unavailable, "train", "libtorch", "is not in this build",
                "build with -DDGC_WITH_TORCH=ON (Debian: libtorch-dev)");
  });
}

}  // namespace dgc::app
