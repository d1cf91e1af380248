// dgc train: parses what is asked for, and runs it here, on workers that it starts, or as one of
// the workers of an mpirun or torchrun.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/sysinfo.h>

#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/environment.h"
#include "base/nearest.h"
#include "command.h"
#include "data/catalogue.h"
#include "dgc/engines.h"
#include "dgc/error.h"
#include "models/catalogue.h"
#include "process/launcher.h"
#include "process/terminal.h"
#include "process/tuning.h"
#include "settings_flags.h"
#include "token.h"
#include "torch_part.h"
#include "train/changeable.h"
#include "train/console.h"
#include "train/recipe.h"
#include "train/relevant.h"
#include "train/run_folder.h"

namespace dgc::app {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct Options {
  std::string out, resume;
  bool list = false, print_config = false, quiet = false, as_json = false;
  SettingsFlags settings;
};

void print_list(bool as_json) {
  std::vector<std::vector<std::string>> rows = {
      {"recipe", "model", "parameters", "data", "on this machine", "in the paper"}};
  json all = json::array();
  for (const train::Recipe& recipe : train::recipes()) {
    const auto place = recipe.data.empty() ? std::nullopt : data::find_data_quietly(recipe.data);
    bool first = true;
    json models = json::array();
    for (const std::string& name : recipe.models) {
      // LibriSpeech's is the same model in another size.
      const models::Model* const model =
          models::find_model(recipe.name == "librispeech" ? "deepspeech-1200" : name);
      const std::uint64_t parameters = model != nullptr ? model->parameters : 0;
      models.push_back({{"name", name}, {"parameters", parameters}});
      const std::string there = recipe.data.empty() ? "not needed" : place ? "yes" : "no";
      rows.push_back({first ? recipe.name : "", name, grouped(parameters),
                      first ? (recipe.data.empty() ? "generated" : recipe.data) : "",
                      first ? there : "", first ? recipe.paper : ""});
      first = false;
    }
    all.push_back({{"recipe", recipe.name},
                   {"what", recipe.what},
                   {"models", models},
                   {"data", recipe.data},
                   {"place", place ? json(place->string()) : json()},
                   {"paper", recipe.paper},
                   {"settings", json::parse(recipe.settings)},
                   {"small", json::parse(recipe.small)}});
  }
  if (as_json) {
    fmt::print("{}\n", all.dump(2));
  } else {
    fmt::print(
        "{}\nThe first model of each is the default. Parameters of lstm are for 10,000 words, of "
        "deepspeech for 16 kHz. `dgc data` says how to get what is missing.\n",
        process::table(rows));
  }
}

int default_workers() { return std::min(4, 2 * ::get_nprocs()); }

/// For a new process with the same settings.
std::vector<std::string> worker_arguments(const json& given, const fs::path& folder,
                                          const Options& options) {
  std::vector<std::string> words = {"train"};
  for (const auto& [name, value] : given.items()) {
    // An empty value would eat the next word.
    if (name == "recipe" || value == json("")) continue;
    words.push_back(
        fmt::format("--{}={}", name, value.is_string() ? value.get<std::string>() : value.dump()));
  }
  if (options.resume.empty()) {
    words.insert(words.begin() + 1, given.value("recipe", "fashion"));
    words.push_back("--out=" + folder.string());
  } else {
    words.push_back("--resume=" + folder.string());
  }
  if (options.quiet) words.emplace_back("--quiet");
  if (options.as_json) words.emplace_back("--json");
  return words;
}

/// What can be found wrong before anybody is started.
void check_data(const train::Settings& settings) {
  const std::string data = train::data_of(settings);
  if (!data.empty()) data::find_data(data, settings.data);
}

int run(const Options& options) {
  if (options.list) {
    print_list(options.as_json);
    return 0;
  }
  json given = options.settings.given();
  if (!options.resume.empty() && !options.out.empty()) {
    throw Error(ErrorCode::invalid_argument, "train", "--out", "a continued run stays where it is",
                "leave it out");
  }
  if (!options.resume.empty() && fs::exists(fs::path(options.resume) / kChoicesFile)) {
    throw Error(
        ErrorCode::invalid_argument, "train", "--resume " + options.resume, "is the run of a hub",
        "`dgc serve --resume` goes on with it; `dgc export` makes a run of dgc train from it");
  }
  const std::string environment = engine_from_environment();
  const bool worker = environment != "local";
  train::Settings settings;
  if (options.resume.empty()) {
    settings = train::resolve(given);
  } else if (fs::exists(fs::path(options.resume) / train::kConfigFile) || !worker) {
    settings = train::resolve(train::resumed_settings(options.resume, given));
  } else {
    throw Error(ErrorCode::io, "resume", options.resume, "this machine has no such run",
                "copy its config.json here, or use a folder that all machines see");
  }
  if (options.print_config) {
    fmt::print("{}\n", train::relevant(settings).dump(2));
    return 0;
  }
  fs::path folder = !options.resume.empty() ? fs::path(options.resume) : fs::path(options.out);
  if (folder.empty()) folder = train::new_run_folder(settings.recipe);

  const TrainJob job{.settings = settings,
                     .folder = folder,
                     .resume = !options.resume.empty(),
                     .quiet = options.quiet,
                     .as_json = options.as_json};
  if (worker) return train_as_rank(job, static_cast<int>(given.value("workers", 0)));
  const int workers = settings.workers > 0 ? static_cast<int>(settings.workers) : default_workers();
  check_data(settings);
  if (settings.launch == "threads" || workers == 1) {
    return train_in_threads(job, workers);
  }
  if (options.resume.empty()) train::begin_run(folder);
  process::choose_fast_blas();
  given["workers"] = workers;
  const int threads = settings.threads > 0 ? static_cast<int>(settings.threads)
                                           : std::max(1, ::get_nprocs() / workers);
  process::Launch start{.workers = workers,
                        .arguments = worker_arguments(given, folder, options),
                        .engine = variable("DGC_ENGINE").value_or("shared"),
                        .environment = {{"OMP_NUM_THREADS", std::to_string(threads)},
                                        {"OPENBLAS_NUM_THREADS", std::to_string(threads)}},
                        // An evaluation, or a step of a large model, may take minutes.
                        .patience = std::chrono::hours(24)};
  if (train::terminal()) {
    start.environment.emplace_back(train::kTerminalVariable,
                                   std::to_string(train::terminal_width()));
  }
  process::launch(start);
  return 0;
}

}  // namespace

void add_train(CLI::App& app) {
  auto* command = app.add_subcommand("train", "Train a model on several workers, with DGC or not");
  command->footer(
      "Settings come from the recipe, then --preset, then --config FILE (JSON with the same "
      "names),\n"
      "then flags. A run's folder gets config.json, metrics.jsonl, checkpoints, summary.json and\n"
      "report.html. Ctrl-C stops with a checkpoint.\n\nExamples:\n"
      "  dgc train --preset small --compare dense,dgc     Fashion-MNIST on 4 workers, in minutes\n"
      "  dgc train text --preset small                    a language model\n"
      "  dgc train cifar10 --data DIR --model resnet20 --epochs 20 --out runs/mine\n"
      "  dgc train --resume runs/mine                     continues exactly\n"
      "  mpirun -n 8 dgc train imagenet --data DIR --out runs/imagenet\n"
      "  RANK=0 WORLD_SIZE=8 MASTER_ADDR=node0 MASTER_PORT=29500 dgc train …   on each machine\n"
      "  dgc train --list                                 recipes, models, data, the paper");
  auto options = std::make_shared<Options>();
  options->settings.add_recipe(*command);
  command->add_flag("--list", options->list, "List recipes, models and data");
  options->settings.add_config(*command);
  command->add_flag("--print-config", options->print_config,
                    "Print all settings of this recipe, as a file for --config; train nothing");
  options->settings.add_name(*command, "--out", options->out,
                             "Folder to write the run to (default: runs/RECIPE-TIME)");
  options->settings.add_name(*command, "--resume", options->resume,
                             "Continue the run in this folder");
  command->add_flag("--quiet", options->quiet, "Print no progress");
  command->add_flag("--json", options->as_json, "Print the summary (or the list) as JSON");
  options->settings.add_flags(*command);
  command->callback([options] {
    const int status = run(*options);
    if (status != 0) throw CLI::RuntimeError(status);
  });
}

}  // namespace dgc::app
