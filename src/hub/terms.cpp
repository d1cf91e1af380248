#include "hub/terms.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>

#include "base/choice.h"
#include "dgc/error.h"
#include "hub/packet.h"

namespace dgc::hub {
namespace {

constexpr std::array kDowns = {Down::forward, Down::select};

std::string shown(const std::vector<TensorSpec>& model, std::size_t i) {
  if (i >= model.size()) return "none";
  const TensorSpec& spec = model[i];
  return fmt::format("'{}' of {}{}", spec.name, spec.shape_text(),
                     spec.dense ? ", sent whole" : "");
}

}  // namespace

std::string_view name_of(Down down) noexcept {
  return down == Down::forward ? "forward" : "select";
}
Down parse_down(std::string_view name) {
  return parse_choice<Down>("--down", name, std::span<const Down>(kDowns));
}

CompressOptions Terms::member_options() const {
  CompressOptions options{.schedule = Schedule(1.0)};
  options.momentum_correction = momentum_correction;
  // Elsewhere than at the members, they accumulate plain gradients.
  if (momentum_correction != MomentumCorrection::local) {
    options.momentum_correction = MomentumCorrection::off;
  }
  options.momentum = momentum_correction == MomentumCorrection::local ? momentum : 0.0f;
  options.nesterov = nesterov && options.momentum != 0.0f;
  options.masking = masking;
  options.residual_decay = residual_decay;
  options.values = values;
  options.dense_values = dense_values;
  return options;
}

CompressOptions Terms::hub_options() const {
  CompressOptions options{.schedule = Schedule(1.0)};
  options.momentum_correction = momentum_correction == MomentumCorrection::global
                                    ? MomentumCorrection::global
                                    : MomentumCorrection::off;
  options.momentum = momentum_correction == MomentumCorrection::global ? momentum : 0.0f;
  options.nesterov = nesterov && options.momentum != 0.0f;
  options.values = values;
  options.dense_values = dense_values;
  return options;
}

void Terms::check() const {
  if (momentum_correction == MomentumCorrection::global && down == Down::forward) {
    throw Error(ErrorCode::invalid_argument, "hub", "--momentum-correction global",
                "needs --down select: the hub puts the momentum into its residual",
                "use --momentum-correction local with --down forward");
  }
  if (residual_decay != 1.0f && momentum != 0.0f) {
    throw Error(ErrorCode::invalid_argument, "hub", "--residual-decay",
                "takes the place of momentum, and there is both", "use --momentum 0");
  }
  if (!(momentum >= 0.0f && momentum < 1.0f) || !(weight_decay >= 0.0f) ||
      !(residual_decay > 0.0f && residual_decay <= 1.0f) || save_every < 1 || check_every < 1) {
    throw Error(ErrorCode::invalid_argument, "hub", "terms", "a number is out of its range");
  }
}

nlohmann::json to_json(const Terms& terms) {
  return {{"down", name_of(terms.down)},
          {"momentum_correction", name_of(terms.momentum_correction)},
          {"momentum_bits", bits_of(terms.momentum)},
          {"nesterov", terms.nesterov},
          {"masking", terms.masking},
          {"weight_decay_bits", bits_of(terms.weight_decay)},
          {"clip_norm", terms.clip_norm},
          {"residual_decay_bits", bits_of(terms.residual_decay)},
          {"values", name_of(terms.values)},
          {"dense_values", name_of(terms.dense_values)},
          {"save_every", terms.save_every},
          {"check_every", terms.check_every}};
}

Terms terms_from(const nlohmann::json& json) {
  if (!json.is_object()) throw Error(ErrorCode::bad_state, "hub", "terms", "are no object");
  const auto small = [&](const char* name) {
    return static_cast<int>(std::min<std::uint64_t>(whole_number(json, name), 1'000'000'000));
  };
  Terms terms{.down = parse_down(text(json, "down")),
              .momentum_correction = parse_momentum_correction(text(json, "momentum_correction")),
              .momentum = float_of_bits(json, "momentum_bits"),
              .nesterov = flag(json, "nesterov"),
              .masking = flag(json, "masking"),
              .weight_decay = float_of_bits(json, "weight_decay_bits"),
              .clip_norm = number(json, "clip_norm"),
              .residual_decay = float_of_bits(json, "residual_decay_bits"),
              .values = parse_value_type(text(json, "values")),
              .dense_values = parse_value_type(text(json, "dense_values")),
              .save_every = small("save_every"),
              .check_every = small("check_every")};
  terms.check();
  return terms;
}

std::uint64_t elements_of(const std::vector<TensorSpec>& model) noexcept {
  std::uint64_t sum = 0;
  for (const TensorSpec& spec : model) sum += spec.elements();
  return sum;
}

nlohmann::json to_json(const std::vector<TensorSpec>& model) {
  nlohmann::json tensors = nlohmann::json::array();
  for (const TensorSpec& spec : model) {
    tensors.push_back({{"name", spec.name}, {"shape", spec.shape}, {"dense", spec.dense}});
  }
  return tensors;
}

std::vector<TensorSpec> model_from(const nlohmann::json& json, std::uint64_t most) {
  const auto refuse = [](const std::string& problem) {
    throw Error(ErrorCode::bad_state, "hub", "model", problem);
  };
  if (!json.is_array()) refuse("is no list of tensors");
  std::vector<TensorSpec> model;
  std::uint64_t elements = 0;
  for (const nlohmann::json& entry : json) {
    if (!entry.is_object()) refuse("has an entry that is no object");
    TensorSpec spec{.name = text(entry, "name"), .shape = {}, .dense = flag(entry, "dense")};
    if (!entry.contains("shape") || !entry["shape"].is_array())
      refuse("has a tensor without shape");
    std::uint64_t size = 1;
    for (const nlohmann::json& side : entry["shape"]) {
      if (!side.is_number_unsigned()) refuse("has a shape that is no list of numbers");
      const auto length = side.get<std::uint64_t>();
      if (length > kMaxElements || (length != 0 && size > kMaxElements / length)) {
        refuse(fmt::format("tensor {} is too large", spec.name));
      }
      size *= length;
      spec.shape.push_back(static_cast<std::int64_t>(length));
    }
    elements += size;
    if (elements > most) refuse(fmt::format("has more than {} parameters", most));
    model.push_back(std::move(spec));
  }
  return model;
}

std::string difference(const std::vector<TensorSpec>& run, const std::vector<TensorSpec>& member) {
  for (std::size_t i = 0; i < std::max(run.size(), member.size()); ++i) {
    const std::string there = shown(run, i);
    const std::string here = shown(member, i);
    if (there != here) {
      return fmt::format("as tensor {} the run has {}, the member has {}", i, there, here);
    }
  }
  return {};
}

}  // namespace dgc::hub
