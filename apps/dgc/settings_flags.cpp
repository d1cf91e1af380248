#include "settings_flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "dgc/error.h"

namespace dgc::app {

using nlohmann::json;

void SettingsFlags::add_name(CLI::App& command, const char* name, std::string& value,
                             const char* help) {
  names_.push_back(command.add_option(name, value, help));
}

void SettingsFlags::add_recipe(CLI::App& command) {
  add_name(command, "RECIPE", recipe_, "What to train (default: fashion)");
}

void SettingsFlags::add_config(CLI::App& command) {
  add_name(command, "--config", config_, "Read settings from a JSON file");
}

void SettingsFlags::add_flags(CLI::App& command) {
  for (const train::Field& field : train::fields()) {
    if (field.name == "recipe") continue;
    const std::string name = "--" + field.name;
    const std::string choices =
        field.choices.empty() ? "" : fmt::format(" ({})", fmt::join(field.choices, ", "));
    // A text that could change would be taken for the place where the value goes.
    const std::string help = field.help + choices;
    std::string& value = values_.emplace_back();
    CLI::Option* option = nullptr;
    if (std::holds_alternative<bool train::Settings::*>(field.member)) {
      option = command.add_flag(fmt::format("{0},!--no-{1}", name, field.name), help);
    } else {
      option = command.add_option(field.name == "mode" ? "--mode,--compare" : name, value, help);
      option->take_last();
      option->type_name(train::type_word(field));
    }
    option->group(field.section);
    flags_.emplace_back(&field, option);
    if (field.name == "momentum-correction") {  // a switch up to version 0.2
      command.add_flag("--no-momentum-correction", no_momentum_correction_)->group("");
    }
  }
}

json SettingsFlags::given() const {
  for (const CLI::Option* option : names_) {
    // An empty name is a variable of a script that was not set: a new run in its place is not what
    // somebody wants.
    if (option->count() == 0 || !option->as<std::string>().empty()) continue;
    throw Error(ErrorCode::invalid_argument, "train", option->get_name(), "is empty",
                "give a value, or leave it out");
  }
  json given = json::object();
  if (!config_.empty()) given = train::read_settings_file(config_);
  if (!given.is_object()) {
    throw Error(ErrorCode::invalid_argument, "--config", config_, "is not an object of settings");
  }
  if (given.contains("compare")) {
    given["mode"] = given["compare"];
    given.erase("compare");
  }
  if (!recipe_.empty()) given["recipe"] = recipe_;
  for (const auto& [field, option] : flags_) {
    if (option->count() == 0) continue;
    given[field->name] = train::parse_value(*field, option->as<std::string>());
  }
  if (no_momentum_correction_) given["momentum-correction"] = "off";
  train::Settings checked;
  train::apply(checked, given, config_.empty() ? "train" : config_);
  return given;
}

}  // namespace dgc::app
