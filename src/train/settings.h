// The configuration of a run: what flags, configuration files and recipes all say in the same
// words.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <variant>
#include <vector>

namespace dgc::train {

/// All of them have a value: a recipe fills them in. fields() has what each means.
/// Values of --ratio beside numbers: by the table of defaults, and that or more where it is free.
inline constexpr const char* kDefaultRatio = "default";
inline constexpr const char* kAutoRatio = "auto";

struct Settings {
  std::string recipe, preset, model;
  std::string data, corpus, train, valid, test, unit;
  std::int64_t examples = 0, valid_examples = 0, vocabulary = 0, image_size = 0;
  double max_seconds = 0.0;
  bool strict = false;

  std::int64_t hidden = 0, layers = 0, convolutions = 0, channels = 0;
  std::int64_t heads = 0, context = 0;
  std::string rnn, positions;
  bool tied = false;
  double dropout = 0.0;

  double epochs = 0.0;
  std::int64_t steps = 0, batch = 0, bptt = 0;
  double lr = 0.0, lr_warmup = 0.0, momentum = 0.0, weight_decay = 0.0, clip_norm = 0.0;
  std::string lr_schedule, inner, precision;
  bool nesterov = false;

  std::string mode, values, dense_values, algorithm, momentum_correction, warmup_shape;
  std::string ratio, budget, outer_lr, residual_decay, mean;
  std::int64_t local_steps = 0;
  double warmup_epochs = 0.0;
  bool masking = true, clipping = true, warmup = true;

  std::int64_t workers = 0, threads = 0, loaders = 0, seed = 0;
  std::string launch, link, emulate_link;
  bool reselect = false;
  double timeout = 0.0;
  std::int64_t log_every = 0, evaluate_every = 0, checkpoint_every = 0, keep = 0;
};

/// One of them: its name on the command line ("--lr-warmup") and in files ("lr-warmup").
struct Field {
  std::string name;
  std::variant<std::string Settings::*, double Settings::*, std::int64_t Settings::*,
               bool Settings::*>
      member;
  std::string section;  ///< of --help
  std::string help;
  /// Of a string: what it may be, or empty. Of a number: empty.
  std::vector<std::string> choices = {};
  /// Of a number: the least and the most that make sense.
  double least = 0.0;
  double most = std::numeric_limits<double>::infinity();
  /// Name of the option of compression or exchange that it sets, or empty.
  std::string option = {};
};
std::span<const Field> fields();
/// TEXT, NUMBER or INT: of its values, for --help.
std::string type_word(const Field& field);

/// Text from a command line as a value of the field's type. Throws Error(invalid_argument) naming
/// the field, what was given and what it may be.
nlohmann::json parse_value(const Field& field, const std::string& text);

/// A checked text as a number, or `otherwise` for "auto".
double number_or(const std::string& text, double otherwise);

/// The value as this version writes it. Files of earlier versions write some in another way.
nlohmann::json todays(const std::string& name, const nlohmann::json& value);

/// The fields that `given` names take its values. `source` is for errors: "dgc.json" or a recipe's
/// name. Throws Error(invalid_argument): a key that is no field, with the nearest; a wrong type; a
/// value outside its domain.
void apply(Settings& settings, const nlohmann::json& given, const std::string& source);

/// A JSON object from a file. Throws Error(io), Error(invalid_argument) with line and column.
nlohmann::json read_settings_file(const std::filesystem::path& file);

/// All fields, in the order of fields().
nlohmann::ordered_json to_json(const Settings& settings);

/// The modes in their order: "dense,dgc" is two. Throws Error(invalid_argument).
std::vector<std::string> modes_of(const Settings& settings);

/// Whether a mode sends every gradient, or every change, whole: nothing is selected.
bool sends_all(const std::string& mode);
/// Whether workers train by themselves for some steps between two exchanges.
bool is_local(const std::string& mode);

}  // namespace dgc::train
