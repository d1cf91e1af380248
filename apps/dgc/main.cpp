#include <fmt/format.h>

#include <cstdio>
#include <exception>

#include "command.h"
#include "dgc/error.h"
#include "dgc/version.h"

int main(int argc, char** argv) {
  CLI::App app{"dgc: train across slow networks by sending 0.1 % of each gradient.\n\n"
               "  dgc info                                what this build can do on this machine\n"
               "  dgc bench compress                      speed of a compression step\n"
               "  dgc bench wire                          size and speed of the wire format\n"
               "  dgc inspect FILE                        what is in a message or state file\n\n"
               "`dgc COMMAND --help` explains each, with examples.",
               "dgc"};
  app.set_version_flag("--version", "dgc " DGC_VERSION);
  app.require_subcommand(1);
  dgc::app::add_info(app);
  dgc::app::add_inspect(app);
  dgc::app::add_bench(app);
  try {
    app.parse(argc, argv);
    if (std::fflush(stdout) != 0) {
      fmt::print(stderr, "dgc: cannot write the output\n");
      return 1;
    }
    return 0;
  } catch (const CLI::ParseError& error) {
    // 0 for --help and --version, 2 for wrong usage; 1 is kept for failures of the work itself.
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const dgc::Error& error) {
    fmt::print(stderr, "dgc: {}\n", error.what());
    return 1;
  } catch (const std::exception& error) {
    fmt::print(stderr, "dgc: {}\n", error.what());
    return 1;
  }
}
