#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "base/nearest.h"
#include "bench/bench.h"
#include "command.h"
#include "dgc/error.h"
#include "dgc/version.h"
#include "process/terminal.h"

namespace {

/// CLI11 says of a misspelt command only that one is required. Names it, with the nearest.
bool commands_exist(const CLI::App& app, int argc, char** argv) {
  const CLI::App* current = &app;
  for (int i = 1; i < argc; ++i) {
    const auto choices = current->get_subcommands([](const CLI::App*) { return true; });
    const std::string word = argv[i];
    if (choices.empty() || word.starts_with("-")) return true;
    const auto found = std::find_if(choices.begin(), choices.end(),
                                    [&](const CLI::App* c) { return c->get_name() == word; });
    if (found == choices.end()) {
      std::vector<std::string> names;
      for (const CLI::App* choice : choices) names.push_back(choice->get_name());
      const std::string parent = current == &app ? "dgc" : "dgc " + current->get_name();
      dgc::process::say(fmt::format("{}: unknown command '{}'; {}`{} --help` lists all\n", parent,
                                    word, dgc::did_you_mean(word, names), parent));
      return false;
    }
    current = *found;
  }
  return true;
}

/// For options that do not exist: the nearest of the command that was called.
std::string suggestion(const CLI::App& app) {
  const CLI::App* command = &app;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  std::vector<std::string> names;
  for (const CLI::Option* option : command->get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  for (const std::string& word : app.remaining(/*recurse=*/true)) {
    if (!word.starts_with("--")) continue;
    return fmt::format("\n{}: {}`dgc {} --help` lists all", word,
                       dgc::did_you_mean(word.substr(0, word.find('=')), names),
                       command->get_name());
  }
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{
      "dgc: train across slow networks by sending 0.1 % of each gradient.\n\n"
      "  dgc train                               train a model on several workers\n"
      "  dgc serve                               a hub: training that others join and leave\n"
      "  dgc join URL                            train with others, over a hub\n"
      "  dgc status URL                          show how a hub's run is going\n"
      "  dgc token                               let people in, or not any more\n"
      "  dgc export RUN                          go on without the hub, with dgc train\n"
      "  dgc plan                                predict whether compression pays on your network\n"
      "  dgc report RUN...                       compare training runs, as a table and a page\n"
      "  dgc data                                list and check data sets for training\n"
      "  dgc sizes                               measure the messages of the paper's models\n"
      "  dgc info                                show what this build can do on this machine\n"
      "  dgc bench compress                      speed of a compression step\n"
      "  dgc bench wire                          size and speed of the wire format\n"
      "  dgc bench exchange                      bytes and time of each exchange algorithm\n"
      "  dgc bench hub                           processor time and memory that a hub needs\n"
      "  dgc bench torch                         cost of dgc in a training step of libtorch\n"
      "  dgc inspect FILE                        show what is in a message, state or checkpoint\n\n"
      "`dgc COMMAND --help` explains each, with examples.",
      "dgc"};
  app.set_version_flag("--version", "dgc " DGC_VERSION);
  app.require_subcommand(1);
  dgc::app::add_train(app);
  dgc::app::add_serve(app);
  dgc::app::add_join(app);
  dgc::app::add_status(app);
  dgc::app::add_token(app);
  dgc::app::add_export(app);
  dgc::app::add_plan(app);
  dgc::app::add_report(app);
  dgc::app::add_data(app);
  dgc::app::add_sizes(app);
  dgc::app::add_info(app);
  dgc::app::add_inspect(app);
  dgc::bench::add_bench(app);
  if (!commands_exist(app, argc, argv)) return 2;
  try {
    app.parse(argc, argv);
    if (std::fflush(stdout) != 0) {
      dgc::process::say("dgc: cannot write the output\n");
      return 1;
    }
    return 0;
  } catch (const CLI::RuntimeError& error) {
    return error.get_exit_code();
  } catch (const CLI::ExtrasError& error) {
    dgc::process::say(fmt::format("{}{}\n", error.what(), suggestion(app)));
    return 2;
  } catch (const CLI::ParseError& error) {
    // 0 for --help and --version, 2 for wrong usage; 1 is kept for failures of the work itself.
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const dgc::Error& error) {
    dgc::process::say(fmt::format("dgc: {}\n", error.what()));
    return 1;
  } catch (const std::exception& error) {
    dgc::process::say(fmt::format("dgc: {}\n", error.what()));
    return 1;
  }
}
