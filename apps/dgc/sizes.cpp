// dgc sizes: the messages of the paper's models, beside the paper's own figures.
#include "train/measure_sizes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/nearest.h"
#include "command.h"
#include "dgc/error.h"
#include "process/terminal.h"

namespace dgc::app {
namespace {

using models::Model;
using train::ModelSizes;

struct Arguments {
  std::vector<std::string> models;
  int steps = 3;
  bool as_json = false;
  bool quiet = false;
};

nlohmann::ordered_json to_json(const ModelSizes& sizes, const Model& model) {
  nlohmann::ordered_json json = {
      {"model", model.title},
      {"parameters", sizes.parameters},
      {"one_dimensional_parameters", sizes.dense_parameters},
      {"entries", sizes.entries},
      {"dense_bytes", sizes.dense_bytes},
      {"paper_format_bytes", sizes.paper_bytes},
      {"paper_ratio", sizes.ratio(sizes.paper_bytes)},
      {"rice_fp16_bytes", sizes.rice_fp16_bytes},
      {"rice_fp16_ratio", sizes.ratio(sizes.rice_fp16_bytes)},
      {"rice_fp16_dense_int8_bytes", sizes.quantised_bytes},
      {"rice_fp16_dense_int8_ratio", sizes.ratio(sizes.quantised_bytes)},
      {"best_format", "rice, sign values, sign for one dimension"},
      {"best_bytes", sizes.best_bytes},
      {"best_ratio", sizes.ratio(sizes.best_bytes)},
      {"local_steps_bytes", sizes.local_bytes},
      {"local_steps_bits_a_parameter", sizes.bits_a_parameter(sizes.local_bytes)},
      {"published_ratio", nullptr}};
  if (model.paper_ratio > 0.0) json["published_ratio"] = model.paper_ratio;
  if (!model.note.empty()) json["note"] = model.note;
  return json;
}

std::string mebibytes(std::uint64_t bytes) {
  return fmt::format("{:.{}f}", static_cast<double>(bytes) / (1 << 20), bytes < (1 << 24) ? 3 : 2);
}

void print_table(const std::vector<const Model*>& models, const std::vector<ModelSizes>& all) {
  std::vector<std::vector<std::string>> rows = {
      {"model", "parameters", "1-dim.", "dense, MiB", "paper's format", "ratio", "published",
       "rice + fp16", "ratio", "1-dim. int8", "all signs", "1/64, 2 bits: bits a parameter"}};
  std::string notes;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const ModelSizes& sizes = all[i];
    const Model& model = *models[i];
    rows.push_back({model.title, grouped(sizes.parameters), grouped(sizes.dense_parameters),
                    mebibytes(sizes.dense_bytes), mebibytes(sizes.paper_bytes),
                    fmt::format("{:.1f}", sizes.ratio(sizes.paper_bytes)),
                    model.paper_ratio > 0.0 ? fmt::format("{:.0f}", model.paper_ratio) : "-",
                    mebibytes(sizes.rice_fp16_bytes),
                    fmt::format("{:.0f}", sizes.ratio(sizes.rice_fp16_bytes)),
                    fmt::format("{:.0f}", sizes.ratio(sizes.quantised_bytes)),
                    fmt::format("{:.0f}", sizes.ratio(sizes.best_bytes)),
                    fmt::format("{:.4f}", sizes.bits_a_parameter(sizes.local_bytes))});
    if (!model.note.empty()) notes += fmt::format("\n{}: {}", model.title, model.note);
  }
  fmt::print("{}{}\n", process::table(rows), notes);
}

/// Those that are measured, in the order of the catalogue.
std::vector<const Model*> measured_models() {
  std::vector<const Model*> models;
  for (const Model& model : models::catalogue()) {
    if (!model.measured.empty()) models.push_back(&model);
  }
  return models;
}

const Model* measured_model(const std::string& name) {
  const std::vector<const Model*> all = measured_models();
  const Model* const model = models::find_model(name);
  if (model != nullptr && std::find(all.begin(), all.end(), model) != all.end()) return model;
  std::vector<std::string> titles;
  for (const Model* one : all) titles.push_back(one->title);
  throw Error(ErrorCode::invalid_argument, "sizes", name, "is none of the models",
              fmt::format("{}known: {}", did_you_mean(name, titles), fmt::join(titles, ", ")));
}

void run(const Arguments& arguments) {
  std::vector<const Model*> models;
  for (const std::string& name : arguments.models) models.push_back(measured_model(name));
  if (models.empty()) models = measured_models();
  std::vector<ModelSizes> all;
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  {
    process::ProgressBar progress(
        "sizes", models.size() * static_cast<std::size_t>(arguments.steps), arguments.quiet);
    for (const Model* model : models) {
      all.push_back(train::measure_sizes(*model, arguments.steps, [&] { progress.advance(); }));
      json.push_back(to_json(all.back(), *model));
    }
  }
  if (arguments.as_json) {
    fmt::print("{}\n", json.dump(2));
  } else {
    print_table(models, all);
  }
}

}  // namespace

void add_sizes(CLI::App& app) {
  auto* command = app.add_subcommand("sizes", "Measure the messages of the paper's models");
  std::string names;
  for (const Model* model : measured_models()) names += (names.empty() ? "" : ", ") + model->title;
  command->footer(
      "Builds each full-size model, trains a few steps on generated data at 99.9 %, and measures "
      "the\n"
      "message of the last: in the paper's format (16-bit runs and fp32, tensors of one dimension\n"
      "whole), as `dgc train` sends it (Rice-coded gaps and fp16), the same with tensors of one\n"
      "dimension as int8 (`--dense-values int8`), and with signs everywhere (`--values sign\n"
      "--dense-values sign`). Last as local steps send it: 1/64 of the entries with 2 bits each, "
      "and\n"
      "tensors of one dimension whole, with 2 bits. Measuring all models takes some minutes and 6 "
      "GiB.\n\n"
      "Examples:\n"
      "  dgc sizes\n"
      "  dgc sizes ResNet-50 PTB\n"
      "  dgc sizes --json > sizes.json");
  auto arguments = std::make_shared<Arguments>();
  command->add_option("MODEL", arguments->models, "Models to measure (default: all): " + names);
  command->add_option("--steps", arguments->steps, "Training steps of each model")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  command->add_flag("--json", arguments->as_json, "Print a JSON array");
  command->add_flag("-q,--quiet", arguments->quiet, "Print no progress");
  command->callback([arguments] { run(*arguments); });
}

}  // namespace dgc::app
