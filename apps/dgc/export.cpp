// dgc export: a hub's run becomes one of `dgc train`.
#include <memory>
#include <nlohmann/json.hpp>

#include "command.h"
#include "dgc/error.h"
#include "token.h"
#include "torch_part.h"
#include "train/run_folder.h"

namespace dgc::app {

void add_export(CLI::App& app) {
  auto* command = app.add_subcommand("export", "Go on without the hub: a hub's run for dgc train");
  command->footer(
      "Takes the newest snapshot of the hub: parameters, statistics of batch normalisation, "
      "momentum,\n"
      "and what the hub has not sent. `dgc serve --from` is the way back.\n\nExample:\n"
      "  dgc export runs/hub --out runs/mesh\n"
      "  dgc train --resume runs/mesh --workers 4\n"
      "  dgc serve fashion --from runs/mesh/dgc/checkpoints --out runs/hub2");
  auto job = std::make_shared<ExportJob>();
  auto data = std::make_shared<std::string>();
  command->add_option("RUN", job->run, "Folder of the hub's run")->required();
  command->add_option("--out", job->out, "Folder to write to")->required();
  command->add_option("--data", *data, "Folder with the data (default: where `dgc data` finds it)");
  command->add_flag("--quiet", job->quiet, "Print nothing");
  command->callback([job, data] {
    if (const auto choices = train::read_json(std::filesystem::path(job->run) / kChoicesFile);
        choices && choices->value("own-model", false)) {
      throw Error(ErrorCode::invalid_argument, "export", job->run,
                  "has a model of its members' own, which dgc train does not have",
                  "each member has the parameters at the end, and can save them");
    }
    if (!data->empty()) job->own_settings = nlohmann::json{{"data", *data}}.dump();
    export_run(*job);
  });
}

}  // namespace dgc::app
