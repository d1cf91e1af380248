#include "train/recipe.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/nearest.h"
#include "dgc/error.h"
#include "dgc/link.h"
#include "train/budget.h"
#include "train/lr_schedule.h"
#include "train/relevant.h"

namespace dgc::train {
namespace {

using nlohmann::json;

// Values that fit most; recipes change the rest. A setting that does not concern a model keeps its
// value here.
constexpr const char* kCommon = R"({
  "preset": "full", "data": "", "corpus": "bible", "train": "", "valid": "", "test": "", "unit": "words",
  "vocabulary": 0, "examples": 0, "valid-examples": 0, "image-size": 0, "max-seconds": 0, "strict": false,
  "hidden": 1500, "layers": 2, "heads": 4, "context": 256, "positions": "learned", "rnn": "lstm", "convolutions": 2, "channels": 32, "tied": true, "dropout": 0,
  "epochs": 1, "steps": 0, "batch": 128, "bptt": 35, "lr": 0.1, "lr-schedule": "constant",
  "lr-warmup": 0, "inner": "sgd", "precision": "fp32", "momentum": 0.9, "nesterov": false, "weight-decay": 0, "clip-norm": 0,
  "mode": "dgc", "ratio": "default", "local-steps": 30, "outer-lr": "auto", "residual-decay": "auto", "mean": "workers", "budget": "", "warmup-epochs": 1, "warmup-shape": "auto", "values": "auto", "dense-values": "auto",
  "algorithm": "auto", "link": "", "reselect": false, "momentum-correction": "auto", "masking": true, "clipping": true,
  "warmup": true, "workers": 0, "launch": "processes", "threads": 0, "loaders": 1, "seed": 1,
  "timeout": 60, "emulate-link": "", "log-every": 10, "evaluate-every": 0, "checkpoint-every": 500, "keep": 2
})";

// CIFAR-10 as in the paper: 164 epochs, total batch 128 on 4 workers, rate / 10 at half and three
// quarters, 4 epochs of warm-up.
constexpr const char* kCifar = R"({"epochs": 164, "lr": 0.1, "lr-schedule": "step:0.1@82,123",
  "weight-decay": 0.0001, "warmup-epochs": 4})";

// The well-known word language model; vanilla SGD, so that momentum correction has nothing to do.
constexpr const char* kLanguageModel = R"({"hidden": 1500, "layers": 2, "dropout": 0.65, "lr": 20,
  "lr-schedule": "plateau:4", "momentum": 0, "clip-norm": 0.25})";
constexpr const char* kText = R"({"epochs": 40, "batch": 20})";
constexpr const char* kSmallText = R"({"hidden": 128, "dropout": 0, "epochs": 2,
  "warmup-epochs": 0.5, "examples": 400000})";

// Transformers have AdamW and local steps, and are named by their sizes. What is sent by the others
// is for their gradients. A model that knows a text by heart says nothing about training, so that
// those beyond a million parameters want more text than the Bible is.
constexpr const char* kTransformer = R"({"unit": "bpe", "inner": "adamw", "momentum": 0,
  "weight-decay": 0.1, "clip-norm": 1, "lr-schedule": "cosine", "mode": "dgc-local",
  "local-steps": 15})";
constexpr const char* kGpt1m = R"({"hidden": 128, "layers": 4, "heads": 4, "context": 128,
  "vocabulary": 1024, "lr": 0.003})";
constexpr const char* kGpt4m = R"({"hidden": 256, "layers": 4, "heads": 4, "context": 256,
  "vocabulary": 2048, "lr": 0.002})";
constexpr const char* kGpt12m = R"({"hidden": 384, "layers": 6, "heads": 6, "context": 256,
  "vocabulary": 4096, "lr": 0.001})";
constexpr const char* kGpt30m = R"({"hidden": 512, "layers": 8, "heads": 8, "context": 512,
  "vocabulary": 8192, "lr": 0.001})";
constexpr const char* kGpt2 = R"({"hidden": 768, "layers": 12, "heads": 12, "context": 1024,
  "vocabulary": 50257, "lr": 0.0006})";

std::vector<std::pair<std::string, std::string>> transformers() {
  std::vector<std::pair<std::string, std::string>> all;
  for (const auto& [name, sizes] : {std::pair{"gpt-4m", kGpt4m},
                                    {"gpt-1m", kGpt1m},
                                    {"gpt-12m", kGpt12m},
                                    {"gpt-30m", kGpt30m},
                                    {"gpt2", kGpt2}}) {
    all.emplace_back(name, kTransformer);
    all.emplace_back(name, sizes);
  }
  return all;
}

std::vector<std::pair<std::string, std::string>> joined(
    std::vector<std::pair<std::string, std::string>> some,
    const std::vector<std::pair<std::string, std::string>>& others) {
  some.insert(some.end(), others.begin(), others.end());
  return some;
}

// Deep Speech 2.
constexpr const char* kDeepSpeech = R"({"hidden": 800, "layers": 5, "rnn": "lstm", "lr": 0.0003,
  "lr-schedule": "anneal:1.1", "momentum": 0.9, "nesterov": true, "clip-norm": 400})";
constexpr const char* kSpeech = R"({"epochs": 70, "batch": 20})";
constexpr const char* kSmallSpeech = R"({"hidden": 96, "layers": 2, "rnn": "gru", "channels": 4,
  "epochs": 15, "batch": 16, "lr": 0.006, "lr-schedule": "cosine", "max-seconds": 8,
  "warmup-epochs": 1})";

// AlexNet, VGG and the small CNN have no batch normalisation: a lower rate.
constexpr const char* kWithoutNorm = R"({"lr": 0.01, "weight-decay": 0.0005})";

std::vector<Recipe> make_recipes() {
  return {
      {"fashion",
       "Fashion-MNIST or MNIST: 60,000 images of 28 x 28",
       {"cnn", "resnet20"},
       "fashion-mnist",
       "not in the paper",
       R"({"epochs": 15, "lr": 0.05, "lr-schedule": "cosine"})",
       R"({"epochs": 3, "batch": 64, "warmup-epochs": 1.2})",
       {{"resnet20", R"({"lr": 0.1, "weight-decay": 0.0001})"}}},
      {"text",
       "a language model on the King James Bible or any text",
       {"lstm"},
       "bible",
       "not in the paper",
       kText,
       kSmallText,
       {{"lstm", kLanguageModel}}},
      {"gpt",
       "a transformer on the King James Bible, the documentation of Linux or any text",
       {"gpt-4m", "gpt-1m", "gpt-12m", "gpt-30m", "gpt2"},
       "bible",
       "not in the paper",
       R"({"corpus": "linux-doc", "epochs": 4, "batch": 32, "lr-warmup": 0.2,
           "evaluate-every": 100, "valid-examples": 65536})",
       R"({"model": "gpt-1m", "corpus": "bible", "epochs": 0.7, "batch": 16, "lr-warmup": 0.05,
           "evaluate-every": 50, "valid-examples": 32768})",
       transformers()},
      {"speech",
       "speech recognition on Asterisk's prompts, or a manifest of your own",
       {"deepspeech"},
       "asterisk",
       "not in the paper",
       kSpeech,
       kSmallSpeech,
       {{"deepspeech", kDeepSpeech}}},
      {"cifar10",
       "CIFAR-10: 60,000 colour images of 32 x 32",
       {"resnet110", "resnet56", "resnet20", "resnet8"},
       "cifar10",
       "ResNet-110, 4 workers: 93.75 % dense, 93.87 % DGC",
       kCifar,
       R"({"model": "resnet8", "epochs": 6, "batch": 32, "lr": 0.05, "lr-schedule": "cosine",
           "warmup-epochs": 1, "examples": 20000})"},
      {"imagenet",
       "ImageNet, or any folder per class of JPEGs",
       {"resnet50", "alexnet", "vgg16"},
       "imagenet",
       "ResNet-50: 75.96 % dense, 76.15 % DGC, 277x; AlexNet: 58.17 / 58.20 %, 597x",
       R"({"epochs": 90, "batch": 256, "lr": 0.1, "lr-schedule": "step:0.1@30,60,80",
           "weight-decay": 0.0001, "warmup-epochs": 4, "loaders": 2})",
       R"({"epochs": 2, "batch": 32, "image-size": 64, "warmup-epochs": 0.5})",
       {{"alexnet", kWithoutNorm}, {"vgg16", kWithoutNorm}}},
      {"ptb",
       "a language model on the Penn Treebank",
       {"lstm"},
       "ptb",
       "2 x 1500: perplexity 72.30 dense, 72.24 DGC, 462x",
       kText,
       kSmallText,
       {{"lstm", kLanguageModel}}},
      {"an4",
       "speech recognition on CMU's AN4",
       {"deepspeech"},
       "an4",
       "5 x 800 LSTM: WER 14.1 % dense, 12.9 % DGC",
       kSpeech,
       kSmallSpeech,
       {{"deepspeech", kDeepSpeech}}},
      {"librispeech",
       "speech recognition on LibriSpeech",
       {"deepspeech"},
       "librispeech",
       "7 x 1200 GRU: WER 9.45 % dense, 9.06 % DGC (clean), 608x",
       kSpeech,
       kSmallSpeech,
       {{"deepspeech", kDeepSpeech},
        {"deepspeech", R"({"hidden": 1200, "layers": 7, "rnn": "gru"})"}}},
      {"synthetic",
       "any model on generated data, to measure speed and sizes",
       {"cnn", "resnet8", "resnet20", "resnet56", "resnet110", "alexnet", "resnet50", "vgg16",
        "lstm", "gpt-1m", "gpt-4m", "gpt-12m", "gpt-30m", "gpt2", "deepspeech"},
       "",
       "",
       R"({"batch": 32, "epochs": 1, "examples": 1024})",
       "{}",
       joined({{"cnn", R"({"lr": 0.01})"},
               {"alexnet", kWithoutNorm},
               {"vgg16", kWithoutNorm},
               {"lstm", kLanguageModel},
               {"deepspeech", kDeepSpeech}},
              transformers())},
  };
}

[[noreturn]] void refuse(const std::string& name, const std::string& problem,
                         const std::string& hint = {}) {
  throw Error(ErrorCode::invalid_argument, "train", "--" + name, problem, hint);
}

std::string given_or(const json& given, const char* name, const std::string& otherwise) {
  const auto found = given.find(name);
  return found != given.end() && found->is_string() ? found->get<std::string>() : otherwise;
}

void check_ratio(const std::string& text) {
  if (text == kDefaultRatio || text == kAutoRatio) return;
  double ratio = 0.0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, ratio);
  if (error != std::errc{} || rest != end || !(ratio >= 0.0 && ratio <= 1.0)) {
    refuse("ratio", fmt::format("'{}' is not default, auto, nor a number in (0, 1]", text),
           "0.001 is the paper's");
  }
  if (ratio == 0.0) refuse("ratio", "0 would send nothing", "0.001 is the paper's");
}

/// "auto", or a number from `least` (or above it) to `most`.
void check_auto(const char* name, const std::string& text, double least, double most,
                const std::string& hint) {
  if (text == "auto") return;
  double value = 0.0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || rest != end || !(value > least && value <= most)) {
    refuse(name,
           fmt::format("'{}' is not auto, nor a number above {}, up to {}", text, least, most),
           hint);
  }
}

void check_modes(const Settings& s) {
  for (const std::string& mode : modes_of(s)) {
    if (s.inner != "sgd" && (mode == "dgc" || mode == "naive")) {
      refuse("inner", fmt::format("mode {} selects from momentum SGD, not from {}", mode, s.inner),
             "use --mode dgc-local, or --inner sgd");
    }
  }
  const auto modes = modes_of(s);
  if (s.ratio == kAutoRatio && std::all_of(modes.begin(), modes.end(), is_local)) {
    refuse("ratio", "auto sends more between steps; rounds of local steps have one ratio",
           "leave it out, or give a number");
  }
  check_auto("outer-lr", s.outer_lr, 0.0, 100.0, "1 applies the mean change as it is");
  check_auto("residual-decay", s.residual_decay, 0.0, 1.0, "1 keeps all that waits");
}

void check_text(const Settings& s) {
  const bool transformer = family_of(s.model) == Family::transformer;
  if (transformer != (s.unit == "bytes" || s.unit == "bpe")) {
    refuse("unit", fmt::format("the model {} does not read {}", s.model, s.unit),
           transformer ? "bytes or bpe" : "words or characters");
  }
  if (!transformer) return;
  const bool generated = s.recipe == "synthetic";
  if (generated ? s.vocabulary < 1
                : s.unit == "bpe" && (s.vocabulary < 256 || s.vocabulary > 65'536)) {
    refuse("vocabulary", fmt::format("{} tokens are asked for", s.vocabulary),
           "byte pairs have from 256 to 65536");
  }
  if (s.hidden % s.heads != 0) {
    refuse("heads", fmt::format("{} do not divide --hidden {} evenly", s.heads, s.hidden));
  }
}

void check_together(const Settings& s, const json& given) {
  const auto fraction = [](const char* name, double value, bool one) {
    if (value < 0.0 || value > 1.0 || (value == 1.0 && !one)) {
      refuse(name, fmt::format("{} is not in [0, {}", value, one ? "1]" : "1)"));
    }
  };
  fraction("momentum", s.momentum, false);
  fraction("dropout", s.dropout, false);
  check_ratio(s.ratio);
  if (!s.budget.empty()) {
    check_budget(s.budget);
    if (given.contains("ratio") && s.ratio != kDefaultRatio) {
      refuse("budget", fmt::format("{} and --ratio {} say the same in two ways", s.budget, s.ratio),
             "leave one of them out");
    }
  }
  if (s.ratio == kAutoRatio && s.algorithm == "hierarchical") {
    refuse("ratio", "auto does not know what hosts of several workers have time for",
           "give a number, or another --algorithm");
  }
  if (s.epochs <= 0.0 && s.steps == 0) refuse("epochs", "0 epochs and no --steps");
  if (s.nesterov && s.momentum == 0.0) refuse("nesterov", "needs a --momentum");
  if (!s.clipping && s.clip_norm == 0.0 && given.contains("clipping")) {
    refuse("no-clipping", "this recipe does not clip", "set --clip-norm to compare with clipping");
  }
  check_modes(s);
  for (const auto& [name, value] : given.items()) {
    if (const std::string why = why_irrelevant(name, s); !why.empty()) {
      refuse(name, why, "leave it out");
    }
  }
  if (family_of(s.model) == Family::text || family_of(s.model) == Family::transformer) {
    check_text(s);
  }
  if (s.vocabulary > 0 && s.recipe == "ptb" && s.train.empty()) {
    refuse("vocabulary", "the Penn Treebank comes with its 10,000 words", "use recipe text");
  }
  const bool generated = s.recipe == "synthetic";
  if (!s.data.empty() &&
      (generated || s.recipe == "text" || s.recipe == "gpt" || s.recipe == "speech")) {
    refuse("data", fmt::format("recipe {} has no folder of data", s.recipe),
           generated ? "leave it out" : "give your own with --train, --valid and --test");
  }
  if (!s.train.empty() && generated) refuse("train", "data are generated", "leave it out");
  if (s.train.empty() && (!s.valid.empty() || !s.test.empty())) {
    refuse("train", "--valid and --test belong to a --train");
  }
  const bool own_words = s.vocabulary > 0 && family_of(s.model) != Family::transformer;
  if (generated && (own_words || s.max_seconds > 0.0)) {
    refuse(own_words ? "vocabulary" : "max-seconds", "data are generated", "leave it out");
  }
  const bool any_size = s.model == "resnet50" || s.model == "alexnet" || s.model == "vgg16";
  if (s.image_size > 0 && !any_size) refuse("image-size", "these images have one size already");
  if (s.convolutions > 3) refuse("convolutions", fmt::format("{} is not 2 or 3", s.convolutions));
  LrSchedule::parse(s.lr_schedule);
  if (!s.link.empty()) parse_link("--link", s.link);
  if (!s.emulate_link.empty()) parse_link("--emulate-link", s.emulate_link);
}

}  // namespace

std::span<const Recipe> recipes() {
  static const std::vector<Recipe> all = make_recipes();
  return all;
}

const Recipe& recipe_named(const std::string& name) {
  std::vector<std::string> names;
  for (const Recipe& recipe : recipes()) {
    if (recipe.name == name) return recipe;
    names.push_back(recipe.name);
  }
  throw Error(ErrorCode::invalid_argument, "train", fmt::format("recipe '{}'", name),
              "there is no such recipe",
              fmt::format("{}known: {}", did_you_mean(name, names), fmt::join(names, ", ")));
}

Family family_of(const std::string& model) {
  if (model == "lstm") return Family::text;
  if (model == "deepspeech") return Family::speech;
  if (model.starts_with("gpt")) return Family::transformer;
  return Family::images;
}

bool has_dropout(const Settings& settings) {
  return settings.dropout > 0.0 || settings.model == "alexnet" || settings.model == "vgg16";
}

std::string data_of(const Settings& settings) {
  if (!settings.train.empty()) return {};
  if (settings.recipe != "synthetic" && family_of(settings.model) == Family::transformer) {
    return settings.corpus;
  }
  return recipe_named(settings.recipe).data;
}

Settings resolve(const json& given) {
  const Recipe& recipe = recipe_named(given_or(given, "recipe", "fashion"));
  const std::string preset = given_or(given, "preset", "full");
  const json small = json::parse(recipe.small);
  std::string model = recipe.models.front();
  if (preset == "small") model = given_or(small, "model", model);
  model = given_or(given, "model", model);
  if (std::find(recipe.models.begin(), recipe.models.end(), model) == recipe.models.end()) {
    refuse("model", fmt::format("recipe {} has no model '{}'", recipe.name, model),
           fmt::format("{}it has {}", did_you_mean(model, recipe.models),
                       fmt::join(recipe.models, ", ")));
  }
  Settings settings;
  apply(settings, json::parse(kCommon), "common settings");
  apply(settings, json::parse(recipe.settings), recipe.name);
  for (const auto& [name, text] : recipe.of_models) {
    if (name == model) apply(settings, json::parse(text), name);
  }
  if (preset == "small") apply(settings, small, recipe.name);
  apply(settings, given, "settings");
  settings.recipe = recipe.name;
  settings.model = model;
  check_together(settings, given);
  return settings;
}

std::int64_t batch_of_worker(const Settings& settings, std::int64_t workers) {
  const double even = static_cast<double>(settings.batch) / static_cast<double>(workers);
  return std::max<std::int64_t>(1, std::llround(even));
}

nlohmann::json synthetic_settings(const models::Model& model) {
  nlohmann::json given = {{"recipe", "synthetic"}, {"model", model.name}};
  if (!model.settings.empty()) given.update(nlohmann::json::parse(model.settings));
  return given;
}

}  // namespace dgc::train
