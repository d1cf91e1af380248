#include "train/relevant.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "train/recipe.h"

namespace dgc::train {
namespace {

/// Settings of some models alone.
const std::vector<std::pair<std::string, std::vector<Family>>>& of_families() {
  using enum Family;
  static const std::vector<std::pair<std::string, std::vector<Family>>> all = {
      {"corpus", {transformer}},
      {"train", {text, speech, transformer}},
      {"valid", {text, speech, transformer}},
      {"test", {text, speech, transformer}},
      {"unit", {text, transformer}},
      {"vocabulary", {text, transformer}},
      {"valid-examples", {transformer}},
      {"image-size", {images}},
      {"max-seconds", {speech}},
      {"hidden", {text, speech, transformer}},
      {"layers", {text, speech, transformer}},
      {"heads", {transformer}},
      {"context", {transformer}},
      {"positions", {transformer}},
      {"rnn", {speech}},
      {"convolutions", {speech}},
      {"channels", {speech}},
      {"tied", {text}},
      {"dropout", {text}},
      {"bptt", {text}},
      {"strict", {images, speech}}};
  return all;
}

/// Settings of some modes alone, whatever else.
const std::vector<std::pair<std::string, std::vector<std::string>>>& of_modes() {
  static const std::vector<std::pair<std::string, std::vector<std::string>>> all = {
      {"local-steps", {"diloco", "dgc-local"}},
      {"outer-lr", {"diloco", "dgc-local"}},
      {"residual-decay", {"dgc-local"}},
      {"mean", {"dgc-local"}}};
  return all;
}

bool is_one_of(const std::string& name, std::initializer_list<const char*> names) {
  return std::any_of(names.begin(), names.end(), [&](const char* one) { return name == one; });
}

/// Of dgc::Sgd, which modes with another optimizer or with local steps do not use.
bool of_sgd(const std::string& setting) {
  return is_one_of(setting, {"budget", "warmup-epochs", "warmup-shape", "warmup", "masking",
                             "momentum-correction", "reselect"});
}

}  // namespace

std::string why_irrelevant(const std::string& setting, const Settings& settings) {
  for (const auto& [name, families] : of_families()) {
    if (name != setting) continue;
    if (std::find(families.begin(), families.end(), family_of(settings.model)) == families.end()) {
      return "means nothing to the model " + settings.model;
    }
  }
  if (setting == "corpus" && !settings.train.empty()) return "means nothing beside --train";
  if (setting == "vocabulary" && settings.unit == "bytes" && settings.recipe != "synthetic") {
    return "means nothing to --unit bytes: there are 256";
  }
  const std::vector<std::string> modes = modes_of(settings);
  for (const auto& [name, users] : of_modes()) {
    if (name != setting) continue;
    const bool used = std::any_of(modes.begin(), modes.end(), [&, &of = users](auto& mode) {
      return std::find(of.begin(), of.end(), mode) != of.end();
    });
    if (!used) return fmt::format("is for --mode {}", fmt::join(users, " and "));
  }
  if (settings.inner != "sgd" && is_one_of(setting, {"momentum", "nesterov"})) {
    return fmt::format("means nothing to --inner {}", settings.inner);
  }
  const bool local = std::all_of(modes.begin(), modes.end(), is_local);
  if (of_sgd(setting) && (local || settings.inner != "sgd")) {
    return local ? fmt::format("means nothing to --mode {}", settings.mode)
                 : fmt::format("means nothing to --inner {}", settings.inner);
  }
  return {};
}

nlohmann::ordered_json relevant(const Settings& settings) {
  nlohmann::ordered_json some;
  const auto all = to_json(settings);
  for (const auto& [name, value] : all.items()) {
    if (why_irrelevant(name, settings).empty()) some[name] = value;
  }
  return some;
}

}  // namespace dgc::train
