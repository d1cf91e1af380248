#include "train/settings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/file.h"
#include "base/nearest.h"
#include "dgc/error.h"
#include "exchange/options.h"

namespace dgc::train {
namespace {

using nlohmann::json;

const std::vector<std::string> kModes = {"dense", "dense-fp16", "dgc",
                                         "naive", "diloco",     "dgc-local"};

/// A field that is an option of compression or exchange: that has its name and its choices.
template <typename T>
Field option(const std::string& option, T Settings::*member, std::string section,
             std::string help) {
  Field field{.name = option,
              .member = member,
              .section = std::move(section),
              .help = std::move(help),
              .option = option};
  std::replace(field.name.begin(), field.name.end(), '_', '-');
  const auto take_choices = [&](const auto& list) {
    for (const auto& one : list) {
      if (one.name == option && std::is_same_v<T, std::string>) field.choices = one.choices;
    }
  };
  take_choices(compress_options());
  take_choices(exchange_options());
  return field;
}

/// A choice that the run makes where nobody else does.
Field or_auto(Field field) {
  field.choices.insert(field.choices.begin(), "auto");
  return field;
}

std::vector<Field> make_fields() {
  using S = Settings;
  return {
      {"recipe", &S::recipe, "", "what to train"},
      {"preset",
       &S::preset,
       "Task",
       "full: as in the paper; small: minutes on 2 cores",
       {"full", "small"}},
      {"model", &S::model, "Task", "model to train; --list shows those of each recipe"},
      {"data", &S::data, "Task", "folder with the data (default: where `dgc data` finds it)"},
      {"corpus",
       &S::corpus,
       "Task",
       "text of recipe gpt: the King James Bible, or the documentation of Linux; see `dgc data`",
       {"bible", "linux-doc"}},
      {"train", &S::train, "Task", "text file, or manifest of recordings, to train on"},
      {"valid", &S::valid, "Task", "the same, for validation"},
      {"test", &S::test, "Task", "the same, for the test after training"},
      {"unit",
       &S::unit,
       "Task",
       "what text is split into: words or characters for lstm; bytes, or byte pairs learned from "
       "the text (bpe), for gpt",
       {"words", "characters", "bytes", "bpe"}},
      {"vocabulary", &S::vocabulary, "Task",
       "keep only so many of the most frequent words, 0 keeps all; with bpe: learn so many tokens"},
      {"examples", &S::examples, "Task",
       "train on so many examples (words, for text) only; 0 takes all"},
      {"valid-examples", &S::valid_examples, "Task",
       "validate on so many tokens only; 0 takes all"},
      {"image-size",
       &S::image_size,
       "Task",
       "side of ImageNet's crops in pixels; 0 takes the model's own",
       {},
       0},
      {"max-seconds", &S::max_seconds, "Task", "leave out longer recordings; 0 keeps all"},
      {"strict", &S::strict, "Task", "stop at an unreadable file instead of skipping it"},

      {"hidden",
       &S::hidden,
       "Model",
       "units of each recurrent layer; width of a transformer",
       {},
       1},
      {"layers", &S::layers, "Model", "number of recurrent layers, or of a transformer's", {}, 1},
      {"heads", &S::heads, "Model", "heads of a transformer's attention", {}, 1},
      {"context", &S::context, "Model", "tokens that a transformer sees at once", {}, 1},
      {"positions",
       &S::positions,
       "Model",
       "how a transformer knows the order of tokens",
       {"learned", "rotary"}},
      {"rnn", &S::rnn, "Model", "type of the recurrent layers of speech models", {"lstm", "gru"}},
      {"convolutions", &S::convolutions, "Model", "convolutions of speech models: 2 or 3", {}, 2},
      {"channels", &S::channels, "Model", "channels of those convolutions", {}, 1},
      {"tied", &S::tied, "Model", "language models use one tensor as embedding and output layer"},
      {"dropout", &S::dropout, "Model", "dropout probability of language models"},

      {"epochs", &S::epochs, "Training", "passes over the data; may be a fraction"},
      {"steps", &S::steps, "Training", "stop after so many steps; 0 trains for --epochs"},
      {"batch", &S::batch, "Training", "examples in a step, of all workers together", {}, 1},
      {"bptt", &S::bptt, "Training", "words in a step of each row of a batch of text", {}, 1},
      {"lr", &S::lr, "Training", "learning rate"},
      {"lr-schedule", &S::lr_schedule, "Training",
       "constant; cosine; step:F@E1,E2 (times F after epochs E1, E2); anneal:F (divided by F each "
       "epoch); plateau:F (divided by F when validation stalls)"},
      {"lr-warmup", &S::lr_warmup, "Training",
       "epochs in which the rate rises from a tenth of --lr to --lr"},
      {"inner",
       &S::inner,
       "Training",
       "optimizer; modes dgc and naive are for sgd",
       {"sgd", "adam", "adamw"}},
      {"precision",
       &S::precision,
       "Training",
       "what layers compute in: fp32, or bf16 (parameters, gradients and what is sent stay fp32); "
       "faster where the processor and libtorch have bf16",
       {"fp32", "bf16"}},
      option("momentum", &S::momentum, "Training", "momentum of SGD; 0: none"),
      option("nesterov", &S::nesterov, "Training", "Nesterov momentum"),
      {"weight-decay", &S::weight_decay, "Training",
       "weight decay (L2; with adamw apart from the gradient, and of matrices only)"},
      option("clip_norm", &S::clip_norm, "Training",
             "largest L2 norm of the averaged gradient; 0: no clipping"),

      {"mode", &S::mode, "Compression",
       "dense, dense-fp16, dgc, naive (dgc without its corrections), diloco (local steps, sent "
       "whole) or dgc-local (local steps, compressed); several, with commas, are compared"},
      {"ratio", &S::ratio, "Compression",
       "share of the gradient's entries that is sent, such as 0.001; default: by the numbers of "
       "workers and steps, 1/64 in dgc-local; auto: that, and more where the network has time for "
       "it, in dgc"},
      {"local-steps",
       &S::local_steps,
       "Compression",
       "steps of each worker by itself between two exchanges, in diloco and dgc-local",
       {},
       1,
       1e6},
      {"outer-lr", &S::outer_lr, "Compression",
       "what the mean change of the workers is multiplied by; auto: 0.7 in diloco, 1 in dgc-local"},
      {"residual-decay", &S::residual_decay, "Compression",
       "what is left of the residual in each exchange of dgc-local; auto: 0.95"},
      option("mean", &S::mean, "Compression",
             "of an entry in dgc-local: over all workers, or over those who sent it"),
      {"budget", &S::budget, "Compression",
       "in place of --ratio: what a worker may receive in the whole run, such as 40MB, or 1% of "
       "what "
       "it would receive densely"},
      {"warmup-epochs", &S::warmup_epochs, "Compression",
       "epochs in which sparsity grows from 75 % to the final one"},
      {"warmup-shape",
       &S::warmup_shape,
       "Compression",
       "what warm-up sends: paper: 25, 6, 1.6, 0.4 % in equal parts; whole: all of the gradient; "
       "auto: by the number of workers",
       {"auto", "paper", "whole"}},
      or_auto(
          option("values", &S::values, "Compression",
                 "number format of the entries that are sent; auto: fp16, int8 with many workers, "
                 "table2 in dgc-local")),
      or_auto(option("dense_values", &S::dense_values, "Compression",
                     "number format of tensors that are sent whole, in modes dgc and dgc-local; "
                     "auto: fp16 where warm-up sends whole gradients, table2 in dgc-local, else "
                     "fp32")),
      option("algorithm", &S::algorithm, "Compression",
             "how workers exchange what they send; auto is allgather in dgc-local"),
      option(
          "link", &S::link, "Compression",
          "link by which auto chooses, such as 100Mbps,25ms (default: it is measured); the report "
          "computes times over it"),
      option("reselect", &S::reselect, "Compression",
             "allow auto to choose owner, which selects twice"),
      or_auto(option("momentum_correction", &S::momentum_correction, "Compression",
                     "local: the paper's (3.2); global: momentum of what all workers applied, for "
                     "many workers; off: momentum after the exchange; auto: by the number of "
                     "workers")),
      option("masking", &S::masking, "Compression", "momentum factor masking (paper, 3.3)"),
      {"clipping", &S::clipping, "Compression", "local gradient clipping (paper, 3.2)"},
      {"warmup", &S::warmup, "Compression", "warm-up of the sparsity (paper, 3.3)"},

      {"workers",
       &S::workers,
       "Running",
       "number of workers to start on this machine; 0: up to 4",
       {},
       0,
       1024},
      {"launch",
       &S::launch,
       "Running",
       "start workers as processes, or as threads (only models without dropout)",
       {"processes", "threads"}},
      {"threads",
       &S::threads,
       "Running",
       "threads of each worker; 0: an even share of the cores",
       {},
       0,
       1024},
      {"loaders", &S::loaders, "Running", "threads of each worker that prepare data", {}, 1, 1024},
      {"seed", &S::seed, "Running", "seed of everything random"},
      {"timeout",
       &S::timeout,
       "Running",
       "seconds after which a silent worker counts as lost",
       {},
       1,
       1e6},
      {"emulate-link", &S::emulate_link, "Running",
       "emulate a link in front of each worker, such as 100Mbps,25ms (workers of one machine)"},
      {"log-every", &S::log_every, "Running", "steps between two lines of metrics.jsonl", {}, 1},
      {"evaluate-every", &S::evaluate_every, "Running",
       "steps between evaluations; 0: only after each epoch"},
      {"checkpoint-every", &S::checkpoint_every, "Running",
       "steps between checkpoints; 0: only after each epoch"},
      {"keep", &S::keep, "Running", "how many checkpoints to keep", {}, 1, 1e6},
  };
}

[[noreturn]] void refuse(const std::string& source, const std::string& name,
                         const std::string& problem, const std::string& hint = {}) {
  throw Error(ErrorCode::invalid_argument, source, name, problem, hint);
}

std::string type_name(const Field& field) {
  static constexpr const char* kNames[] = {"a text", "a number", "a whole number", "true or false"};
  return kNames[field.member.index()];
}

std::string list_of(const std::vector<std::string>& choices) {
  return fmt::format("{}", fmt::join(choices, ", "));
}

/// What a value has to be for any recipe.
void check(const Field& field, const json& value, const std::string& source) {
  const bool fits = (field.member.index() == 0 && value.is_string()) ||
                    (field.member.index() == 1 && value.is_number()) ||
                    (field.member.index() == 2 && value.is_number_integer()) ||
                    (field.member.index() == 3 && value.is_boolean());
  if (!fits)
    refuse(source, field.name, fmt::format("{} is not {}", value.dump(), type_name(field)));
  if (value.is_number()) {
    const auto number = value.get<double>();
    if (!std::isfinite(number) || number < field.least) {
      refuse(source, field.name, fmt::format("{} is not {} or more", value.dump(), field.least));
    }
    // What does not fit into 64 bits would be read as something else.
    const bool too_large = value.is_number_unsigned() && value.get<std::uint64_t>() >> 63 != 0;
    if (field.member.index() == 2 && too_large) {
      refuse(source, field.name, fmt::format("{} is too large", value.dump()));
    }
    if (number > field.most) {
      refuse(source, field.name, fmt::format("{} is more than {}", value.dump(), field.most));
    }
  }
  const auto& choices = field.choices;
  if (!choices.empty() &&
      std::find(choices.begin(), choices.end(), value.get<std::string>()) == choices.end()) {
    refuse(source, field.name,
           fmt::format("'{}' is none of {}", value.get<std::string>(), list_of(choices)));
  }
}

const Field& field_named(const std::string& name, const std::string& source) {
  // --compare dense,dgc reads better than --mode dense,dgc.
  const std::string sought = name == "compare" ? "mode" : name;
  const auto all = fields();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const Field& f) { return f.name == sought; });
  if (found != all.end()) return *found;
  std::vector<std::string> names = {"compare"};
  for (const Field& field : all) names.push_back(field.name);
  refuse(source, name, "there is no such setting",
         did_you_mean(name, names) + "`dgc train --help` lists all");
}

}  // namespace

std::span<const Field> fields() {
  static const std::vector<Field> all = make_fields();
  return all;
}

std::string type_word(const Field& field) {
  static constexpr const char* kWords[] = {"TEXT", "NUMBER", "INT", ""};
  return kWords[field.member.index()];
}

double number_or(const std::string& text, double otherwise) {
  return text == "auto" ? otherwise : std::stod(text);
}

// Momentum correction was a switch up to version 0.2, and the ratio was a number.
json todays(const std::string& name, const json& value) {
  if (name == "ratio" && value.is_number()) return value.dump();
  if (name != "momentum-correction") return value;
  if (value == json(true) || value == json("true")) return "local";
  if (value == json(false) || value == json("false")) return "off";
  return value;
}

json parse_value(const Field& field, const std::string& text) {
  json value = text;
  if (field.member.index() != 0) {
    value = json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (value.is_discarded()) value = text;
  }
  value = todays(field.name, value);
  check(field, value, "--" + field.name);
  return value;
}

void apply(Settings& settings, const json& given, const std::string& source) {
  if (!given.is_object()) refuse(source, "settings", "is not an object of names and values");
  for (const auto& [name, given_value] : given.items()) {
    const Field& field = field_named(name, source);
    const json value = todays(field.name, given_value);
    check(field, value, source);
    std::visit(
        [&, &v = value](auto member) {
          settings.*member = v.template get<std::decay_t<decltype(settings.*member)>>();
        },
        field.member);
  }
}

json read_settings_file(const std::filesystem::path& file) {
  const MappedFile mapped(file);
  const auto* const text = reinterpret_cast<const char*>(mapped.contents().data());
  try {
    return json::parse(text, text + mapped.contents().size());
  } catch (const json::exception& error) {
    // Its message has line and column, or the number that is too large.
    refuse("--config", file.string(), error.what());
  }
}

nlohmann::ordered_json to_json(const Settings& settings) {
  nlohmann::ordered_json all;
  for (const Field& field : fields()) {
    std::visit([&](auto member) { all[field.name] = settings.*member; }, field.member);
  }
  return all;
}

std::vector<std::string> modes_of(const Settings& settings) {
  std::vector<std::string> modes;
  std::stringstream words(settings.mode);
  for (std::string mode; std::getline(words, mode, ',');) {
    if (std::find(kModes.begin(), kModes.end(), mode) == kModes.end()) {
      refuse("--mode", mode, "there is no such mode",
             fmt::format("{}known: {}", did_you_mean(mode, kModes), list_of(kModes)));
    }
    if (std::find(modes.begin(), modes.end(), mode) != modes.end()) {
      refuse("--mode", mode, "is there twice");
    }
    modes.push_back(mode);
  }
  if (modes.empty()) refuse("--mode", settings.mode, "names no mode", "try dense,dgc");
  return modes;
}

bool sends_all(const std::string& mode) {
  return mode == "dense" || mode == "dense-fp16" || mode == "diloco";
}

bool is_local(const std::string& mode) { return mode == "diloco" || mode == "dgc-local"; }

}  // namespace dgc::train
