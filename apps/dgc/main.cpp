#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <numeric>
#include <string>
#include <vector>

#include "command.h"
#include "dgc/error.h"
#include "dgc/version.h"

namespace {

std::size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0]++;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replace = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({replace, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

/// CLI11 says of a misspelt command only that one is required. Names it, with the nearest.
bool commands_exist(const CLI::App& app, int argc, char** argv) {
  const CLI::App* current = &app;
  for (int i = 1; i < argc; ++i) {
    const auto choices = current->get_subcommands([](const CLI::App*) { return true; });
    const std::string word = argv[i];
    if (choices.empty() || word.starts_with("-")) return true;
    const auto distance = [&word](const CLI::App* choice) {
      return edit_distance(word, choice->get_name());
    };
    const auto nearest = *std::min_element(choices.begin(), choices.end(), [&](auto* a, auto* b) {
      return distance(a) < distance(b);
    });
    if (nearest->get_name() != word) {
      fmt::print(stderr, "{}: unknown command '{}'; did you mean '{}'? `{} --help` lists all\n",
                 current->get_name(), word, nearest->get_name(), current->get_name());
      return false;
    }
    current = nearest;
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{
      "dgc: train across slow networks by sending 0.1 % of each gradient.\n\n"
      "  dgc info                                what this build can do on this machine\n"
      "  dgc bench compress                      speed of a compression step\n"
      "  dgc bench wire                          size and speed of the wire format\n"
      "  dgc bench exchange                      bytes and time of each exchange algorithm\n"
      "  dgc bench torch                         what it costs a training step of libtorch\n"
      "  dgc inspect FILE                        what is in a message, state or checkpoint\n\n"
      "`dgc COMMAND --help` explains each, with examples.",
      "dgc"};
  app.set_version_flag("--version", "dgc " DGC_VERSION);
  app.require_subcommand(1);
  dgc::app::add_info(app);
  dgc::app::add_inspect(app);
  dgc::app::add_bench(app);
  if (!commands_exist(app, argc, argv)) return 2;
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
