// dgc data: the data sets that recipes can use, and whether those on this machine are whole.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "command.h"
#include "data/catalogue.h"
#include "data/check.h"
#include "dgc/error.h"
#include "process/terminal.h"

namespace dgc::app {
namespace {

using nlohmann::json;

constexpr std::size_t kMostProblems = 20;

/// Names of files need not be UTF-8.
std::string text_of(const json& value) {
  return value.dump(2, ' ', false, json::error_handler_t::replace);
}

void list_json() {
  json sets = json::array();
  for (const data::DataSet& set : data::catalogue()) {
    const auto where = data::find_data_quietly(set.name);
    json archives = json::array();
    for (const data::DataArchive& archive : set.archives)
      archives.push_back({{"name", archive.name}, {"md5", archive.md5}});
    json places = json::array();
    for (const auto& place : set.places) places.push_back(place.string());
    sets.push_back({{"name", set.name},
                    {"recipes", set.recipes},
                    {"what", set.what},
                    {"size", set.size},
                    {"package", set.package},
                    {"page", set.page},
                    {"how", set.how},
                    {"places", places},
                    {"package_only", set.package_only},
                    {"archives", archives},
                    {"licence", set.licence},
                    {"here", where ? json(where->string()) : json(nullptr)}});
  }
  fmt::print("{}\n", text_of(sets));
}

void list(bool as_json) {
  if (as_json) {
    list_json();
    return;
  }
  std::vector<std::vector<std::string>> rows = {{"name", "recipe", "to download", "here"}};
  std::string missing;
  for (const data::DataSet& set : data::catalogue()) {
    const auto where = data::find_data_quietly(set.name);
    rows.push_back({set.name, fmt::format("{}", fmt::join(set.recipes, ", ")), set.size,
                    where ? where->string() : "no"});
    if (where) continue;
    missing += fmt::format("\n{}: {}\n  to get it: {}\n", set.name, set.what, set.how);
    if (!set.page.empty()) missing += fmt::format("  page: {}\n", set.page);
    missing += fmt::format("  licence: {}\n", set.licence);
  }
  fmt::print("{}", process::table(rows));
  if (!missing.empty()) {
    fmt::print(
        "\nNot on this machine (DGC_DATA names a folder of your own with a folder per set):\n{}",
        missing);
  }
}

std::string counted(std::size_t problems) {
  return problems == 1 ? "1 problem" : grouped(problems) + " problems";
}

void show(const std::string& folder, const data::CheckedData& checked, bool as_json) {
  if (as_json) {
    const json all = {{"folder", folder},
                      {"kind", checked.kind},
                      {"whole", checked.problems.empty()},
                      {"facts", checked.facts},
                      {"problems", checked.problems}};
    fmt::print("{}\n", text_of(all));
    return;
  }
  fmt::print("{}: {}\n", folder, checked.kind);
  for (const std::string& fact : checked.facts) fmt::print("  {}\n", fact);
  if (checked.problems.empty()) {
    fmt::print("no problems\n");
    return;
  }
  const std::size_t count = checked.problems.size();
  fmt::print("{}:\n", counted(count));
  for (std::size_t i = 0; i < std::min(count, kMostProblems); ++i)
    fmt::print("  {}\n", checked.problems[i]);
  if (count > kMostProblems)
    fmt::print("  … and {} more; --json lists all\n", grouped(count - kMostProblems));
}

struct CheckArguments {
  std::string folder;
  bool as_json = false;
  bool quick = false;
  bool quiet = false;
};

/// A folder, or the name of a set in the catalogue.
std::filesystem::path folder_of(const std::string& word) {
  std::error_code ignored;
  if (!std::filesystem::exists(word, ignored)) {
    for (const data::DataSet& set : data::catalogue())
      if (set.name == word) return data::find_data(word);
  }
  return word;
}

void check(const CheckArguments& arguments) {
  const std::filesystem::path folder = folder_of(arguments.folder);
  std::unique_ptr<process::ProgressBar> progress;
  data::CheckOptions options{.quick = arguments.quick, .progress = {}};
  options.progress = [&](std::size_t, std::size_t total) {
    if (!progress)
      progress = std::make_unique<process::ProgressBar>("check", total, arguments.quiet);
    progress->advance();
  };
  const data::CheckedData checked = data::check_data(folder, options);
  progress.reset();
  show(folder.string(), checked, arguments.as_json);
  if (!checked.problems.empty()) {
    throw Error(ErrorCode::io, "check", folder.string(),
                fmt::format("{} with the data", counted(checked.problems.size())));
  }
}

}  // namespace

void add_data(CLI::App& app) {
  auto* command =
      app.add_subcommand("data", "List the data sets for training, and check those you have");
  command->footer(
      "Without a command, this lists the data sets that recipes use, whether each is on this\n"
      "machine, and how to get it. dgc looks in $DGC_DATA/NAME, then where Debian's packages put\n"
      "them.\n\n"
      "Examples:\n"
      "  dgc data\n"
      "  dgc data --json\n"
      "  dgc data check fashion-mnist\n"
      "  dgc data check ~/data/cifar10\n"
      "  dgc data check ~/data/imagenet --quick");
  auto as_json = std::make_shared<bool>(false);
  command->add_flag("--json", *as_json, "Print JSON");

  auto* check_command =
      command->add_subcommand("check", "Check whether a data set is complete and undamaged");
  check_command->footer(
      "The check reads every file: counts, ranges, contents, and the MD5 where it is known.\n"
      "The exit status is 1 when something is wrong with the data.\n\n"
      "Examples:\n"
      "  dgc data check ~/data/cifar10\n"
      "  dgc data check asterisk --json\n"
      "  dgc data check ~/data/imagenet --quick");
  auto arguments = std::make_shared<CheckArguments>();
  check_command
      ->add_option("DIR", arguments->folder, "A folder of data, or the name of a set (`dgc data`)")
      ->required();
  check_command->add_flag("--json", arguments->as_json, "Print JSON");
  check_command->add_flag("--quick", arguments->quick,
                          "Read only the headers of images and audio, and no archives");
  check_command->add_flag("-q,--quiet", arguments->quiet, "Print no progress");
  check_command->callback([arguments, as_json] {
    arguments->as_json |= *as_json;  // before or after `check`
    check(*arguments);
  });
  command->callback([command, as_json] {
    if (command->get_subcommands().empty()) list(*as_json);
  });
}

}  // namespace dgc::app
