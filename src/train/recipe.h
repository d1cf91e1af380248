// What `dgc train` knows how to train, with the settings of the paper and small ones.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "models/catalogue.h"
#include "train/settings.h"

namespace dgc::train {

enum class Family { images, text, speech, transformer };

struct Recipe {
  std::string name;
  std::string what;                 ///< one line
  std::vector<std::string> models;  ///< the first is the default
  std::string data;                 ///< name in the catalogue; "" where data are generated
  std::string paper;                ///< its figures, one line
  std::string settings;             ///< JSON: what differs from common_settings()
  std::string small;                ///< JSON: what --preset small changes beside
  /// JSON: what differs for some of the models, beside.
  std::vector<std::pair<std::string, std::string>> of_models = {};
};
std::span<const Recipe> recipes();

/// Throws Error(invalid_argument) with the nearest name.
const Recipe& recipe_named(const std::string& name);

/// What a model is trained on, whatever the recipe.
Family family_of(const std::string& model);

/// Whether training draws from libtorch's generator, which belongs to the process.
bool has_dropout(const Settings& settings);

/// Name in the catalogue of data sets of what this run reads; "" where data are generated or given.
std::string data_of(const Settings& settings);

/// Settings of the recipe and model that `given` names, then its preset, then `given`: all that
/// was said on the command line and in configuration files. Throws Error(invalid_argument) for
/// what does not fit together: a model of another recipe, fractions outside [0, 1] and so on.
Settings resolve(const nlohmann::json& given);

/// settings.batch in equal parts, at least 1 each: the nearest that can be.
std::int64_t batch_of_worker(const Settings& settings, std::int64_t workers);

/// What to give resolve() for a model of the catalogue, on generated data.
nlohmann::json synthetic_settings(const models::Model& model);

}  // namespace dgc::train
