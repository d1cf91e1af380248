// Domains and names of the options of compression.
#include "compress/options.h"

#include <fmt/format.h>

#include <array>
#include <cmath>

#include "compress/option_table.h"
#include "dgc/error.h"

namespace dgc {
namespace {

[[noreturn]] void reject(std::string subject, std::string problem, std::string hint = {}) {
  throw Error(ErrorCode::invalid_argument, "compress", std::move(subject), std::move(problem),
              std::move(hint));
}

}  // namespace

void compress::check_options(const CompressOptions& options, const State& state) {
  if (!(options.momentum >= 0.0f && options.momentum < 1.0f)) {
    reject("momentum", fmt::format("{} is not in [0, 1)", options.momentum));
  }
  if (options.nesterov && options.momentum == 0.0f) {
    reject("nesterov", "needs a momentum above 0");
  }
  if (!(options.residual_decay > 0.0f && options.residual_decay <= 1.0f)) {
    reject("residual_decay", fmt::format("{} is not in (0, 1]", options.residual_decay),
           "1 keeps the whole residual");
  }
  if (options.residual_decay != 1.0f && (options.needs_velocity() || options.feedback() != 0.0f)) {
    reject("residual_decay",
           fmt::format("{} with momentum {}", options.residual_decay, options.momentum),
           "set one of them: momentum 0, or residual_decay 1");
  }
  if (!(options.clip_norm >= 0.0) || std::isinf(options.clip_norm)) {
    reject("clip_norm", fmt::format("{} is negative or not finite", options.clip_norm),
           "0 turns clipping off");
  }
  if (options.threads < 1 || options.threads > 1024) {
    reject("threads", fmt::format("{} is not in [1, 1024]", options.threads));
  }
  if (state.workers() > 0x10000)
    reject("workers", "more than 65536", "ranks are 16-bit on the wire");
  if (options.indices == IndexCoding::dense) {
    reject("indices", "dense is not a coding for a selection", "use ratio 1 or dense tensors");
  }
  if (options.needs_velocity() && !state.has_velocity()) {
    reject("momentum", fmt::format("{} needs a state with velocity", options.momentum),
           "construct the State with with_velocity = true, or use global momentum correction");
  }
}

std::string_view name_of(Selection selection) noexcept {
  switch (selection) {
    case Selection::reuse:
      return "reuse";
    case Selection::sampled:
      return "sampled";
    case Selection::exact:
      return "exact";
  }
  return "unknown";
}

std::span<const Selection> selections() noexcept {
  static constexpr std::array kAll = {Selection::reuse, Selection::sampled, Selection::exact};
  return kAll;
}

Selection parse_selection(std::string_view name) {
  return parse_choice("selection", name, selections());
}

std::string_view name_of(MomentumCorrection correction) noexcept {
  switch (correction) {
    case MomentumCorrection::local:
      return "local";
    case MomentumCorrection::global:
      return "global";
    case MomentumCorrection::off:
      return "off";
  }
  return "unknown";
}

std::span<const MomentumCorrection> momentum_corrections() noexcept {
  static constexpr std::array kAll = {MomentumCorrection::local, MomentumCorrection::global,
                                      MomentumCorrection::off};
  return kAll;
}

MomentumCorrection parse_momentum_correction(std::string_view name) {
  if (name == "true") return MomentumCorrection::local;
  if (name == "false") return MomentumCorrection::off;
  return parse_choice("momentum_correction", name, momentum_corrections());
}

std::span<const Option<CompressOptions>> compress_options() {
  using O = CompressOptions;
  static const std::vector<Option<O>> all = {
      {.name = "schedule",
       .parse = [](O& o, std::string_view text) { o.schedule = Schedule::parse(text, 0); },
       .print =
           [](const O& o) {
             std::string text = o.schedule.describe();
             text.pop_back();  // the end of its last line
             return text;
           }},
      plain_option("momentum", &O::momentum),
      plain_option("nesterov", &O::nesterov),
      choice_option("momentum_correction", &O::momentum_correction, momentum_corrections()),
      plain_option("masking", &O::masking),
      plain_option("residual_decay", &O::residual_decay),
      plain_option("clip_norm", &O::clip_norm),
      choice_option("selection", &O::selection, selections(), false),
      choice_option("values", &O::values, value_types()),
      choice_option("dense_values", &O::dense_values, value_types()),
      choice_option("indices", &O::indices, index_codings()),
      plain_option("threads", &O::threads, false),
  };
  return all;
}

}  // namespace dgc
