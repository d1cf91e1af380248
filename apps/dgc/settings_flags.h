// What a run's settings are made of on a command line: a recipe, a file, and a flag for each field.
#pragma once

#include <CLI/CLI.hpp>
#include <deque>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "train/settings.h"

namespace dgc::app {

/// Options of one command. They refer to this object, which must not move.
class SettingsFlags {
 public:
  SettingsFlags() = default;
  SettingsFlags(const SettingsFlags&) = delete;
  SettingsFlags& operator=(const SettingsFlags&) = delete;

  void add_recipe(CLI::App& command);
  void add_config(CLI::App& command);
  /// All fields but the recipe.
  void add_flags(CLI::App& command);
  /// A file or folder. given() refuses an empty one.
  void add_name(CLI::App& command, const char* name, std::string& value, const char* help);

  /// Everything that was said, flags over files, by the names of the fields. Throws
  /// Error(invalid_argument), Error(io).
  nlohmann::json given() const;

 private:
  std::string recipe_, config_;
  bool no_momentum_correction_ = false;
  std::vector<std::pair<const train::Field*, CLI::Option*>> flags_;
  std::deque<std::string> values_;  // of the flags, as texts
  std::vector<const CLI::Option*> names_;
};

}  // namespace dgc::app
