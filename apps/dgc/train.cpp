// dgc train: parses what is asked for, and runs it here, on workers that it starts, or as one of
// the workers of an mpirun or torchrun.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/sysinfo.h>

#include <cstdlib>
#include <deque>
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
  std::string config, out, resume;
  bool no_momentum_correction = false;
  bool list = false, print_config = false, quiet = false, as_json = false;
  /// What the flags say, by the names of the fields.
  std::vector<std::pair<const train::Field*, CLI::Option*>> flags;
  std::deque<std::string> values;  // of the flags, as texts
  std::string recipe;
  std::vector<const CLI::Option*> names;  // of recipe, files and folders
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

/// Everything that was said, flags over files.
json given_settings(const Options& options) {
  json given = json::object();
  if (!options.config.empty()) given = train::read_settings_file(options.config);
  if (!given.is_object()) {
    throw Error(ErrorCode::invalid_argument, "--config", options.config,
                "is not an object of settings");
  }
  if (given.contains("compare")) {
    given["mode"] = given["compare"];
    given.erase("compare");
  }
  if (!options.recipe.empty()) given["recipe"] = options.recipe;
  for (const auto& [field, option] : options.flags) {
    if (option->count() == 0) continue;
    given[field->name] = train::parse_value(*field, option->as<std::string>());
  }
  if (options.no_momentum_correction) given["momentum-correction"] = "off";
  train::Settings checked;
  train::apply(checked, given, options.config.empty() ? "train" : options.config);
  return given;
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

/// An empty name is a variable of a script that was not set: a new run in its place is not what
/// somebody wants.
void refuse_empty(const Options& options) {
  for (const CLI::Option* option : options.names) {
    if (option->count() == 0 || !option->as<std::string>().empty()) continue;
    throw Error(ErrorCode::invalid_argument, "train", option->get_name(), "is empty",
                "give a value, or leave it out");
  }
}

int run(const Options& options) {
  refuse_empty(options);
  if (options.list) {
    print_list(options.as_json);
    return 0;
  }
  json given = given_settings(options);
  if (!options.resume.empty() && !options.out.empty()) {
    throw Error(ErrorCode::invalid_argument, "train", "--out", "a continued run stays where it is",
                "leave it out");
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
  const auto add_name = [&](const char* name, std::string& value, const char* help) {
    options->names.push_back(command->add_option(name, value, help));
  };
  add_name("RECIPE", options->recipe, "What to train (default: fashion)");
  command->add_flag("--list", options->list, "List recipes, models and data");
  add_name("--config", options->config, "Read settings from a JSON file");
  command->add_flag("--print-config", options->print_config,
                    "Print all settings of this recipe, as a file for --config; train nothing");
  add_name("--out", options->out, "Folder to write the run to (default: runs/RECIPE-TIME)");
  add_name("--resume", options->resume, "Continue the run in this folder");
  command->add_flag("--quiet", options->quiet, "Print no progress");
  command->add_flag("--json", options->as_json, "Print the summary (or the list) as JSON");
  for (const train::Field& field : train::fields()) {
    if (field.name == "recipe") continue;
    const std::string name = "--" + field.name;
    const std::string choices =
        field.choices.empty() ? "" : fmt::format(" ({})", fmt::join(field.choices, ", "));
    // A text that could change would be taken for the place where the value goes.
    const std::string help = field.help + choices;
    std::string& value = options->values.emplace_back();
    CLI::Option* option = nullptr;
    if (std::holds_alternative<bool train::Settings::*>(field.member)) {
      option = command->add_flag(fmt::format("{0},!--no-{1}", name, field.name), help);
    } else {
      option = command->add_option(field.name == "mode" ? "--mode,--compare" : name, value, help);
      option->take_last();
      option->type_name(train::type_word(field));
    }
    option->group(field.section);
    options->flags.emplace_back(&field, option);
    if (field.name == "momentum-correction") {  // a switch up to version 0.2
      command->add_flag("--no-momentum-correction", options->no_momentum_correction)->group("");
    }
  }
  command->callback([options] {
    const int status = run(*options);
    if (status != 0) throw CLI::RuntimeError(status);
  });
}

}  // namespace dgc::app
