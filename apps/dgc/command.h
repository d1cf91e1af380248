// The subcommands of dgc. Each adds itself to the parser; its callback does the work and throws
// dgc::Error for anything that goes wrong.
#pragma once

#include <CLI/CLI.hpp>

namespace dgc::app {

void add_info(CLI::App& app);
void add_inspect(CLI::App& app);
void add_report(CLI::App& app);
void add_data(CLI::App& app);
void add_plan(CLI::App& app);
void add_train(CLI::App& app);
void add_sizes(CLI::App& app);
void add_serve(CLI::App& app);
void add_join(CLI::App& app);
void add_token(CLI::App& app);
void add_export(CLI::App& app);
void add_status(CLI::App& app);

}  // namespace dgc::app
