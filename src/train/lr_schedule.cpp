// The rate at epoch t of T, as a factor of --lr:
//
//   constant          1
//   cosine            (1 + cos(pi t / T)) / 2
//   step:F@E1,E2      F for each of E1, E2 ... that t has reached
//   anneal:F          F^-floor(t)
//   plateau:F         divided by F after each evaluation whose loss is not the best so far
//
// In the first --lr-warmup epochs it rises from a tenth in a straight line.
#include "train/lr_schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numbers>
#include <optional>
#include <string_view>

#include "dgc/error.h"

namespace dgc::train {
namespace {

std::optional<double> number(std::string_view text) {
  double value = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value > 0.0)) return {};
  return value;
}

}  // namespace

LrSchedule LrSchedule::parse(const std::string& text) {
  const auto refuse = [&]() -> LrSchedule {
    throw Error(ErrorCode::invalid_argument, "train", "--lr-schedule",
                fmt::format("'{}' is no schedule", text),
                "constant, cosine, step:0.1@30,60,80, anneal:1.1 or plateau:4");
  };
  LrSchedule schedule;
  const std::string_view all = text;
  const std::string_view kind = all.substr(0, all.find(':'));
  const std::string_view rest = all.size() > kind.size() ? all.substr(kind.size() + 1) : "";
  if (kind == "constant" || kind == "cosine") {
    if (kind.size() != all.size()) return refuse();
    schedule.kind_ = kind == "cosine" ? Kind::cosine : Kind::constant;
    return schedule;
  }
  const std::string_view by = rest.substr(0, rest.find('@'));
  if (kind == "step") {
    schedule.kind_ = Kind::step;
    if (by.size() == rest.size()) return refuse();
    for (std::string_view at = rest.substr(by.size() + 1);;) {
      const auto epoch = number(at.substr(0, at.find(',')));
      if (!epoch) return refuse();
      schedule.at_.push_back(*epoch);
      if (at.find(',') == std::string_view::npos) break;
      at.remove_prefix(at.find(',') + 1);
    }
  } else if (kind == "anneal" || kind == "plateau") {
    schedule.kind_ = kind == "anneal" ? Kind::anneal : Kind::plateau;
    if (by.size() != rest.size()) return refuse();
  } else {
    return refuse();
  }
  const auto factor = number(by);
  if (!factor) return refuse();
  schedule.by_ = *factor;
  return schedule;
}

double LrSchedule::factor(double epoch, double epochs, double warmup) const {
  double factor = 1.0;
  switch (kind_) {
    case Kind::constant:
      break;
    case Kind::cosine:
      factor = 0.5 + 0.5 * std::cos(std::numbers::pi * std::min(1.0, epoch / epochs));
      break;
    case Kind::step:
      for (const double at : at_) factor *= epoch >= at ? by_ : 1.0;
      break;
    case Kind::anneal:
      factor = std::pow(by_, -std::floor(epoch));
      break;
    case Kind::plateau:
      factor = state_.factor;
      break;
  }
  if (epoch < warmup) factor *= 0.1 + 0.9 * epoch / warmup;
  return factor;
}

void LrSchedule::evaluated(double loss) {
  if (kind_ != Kind::plateau) return;
  if (!state_.any || loss < state_.best) {
    state_.best = loss;
    state_.any = true;
  } else {
    state_.factor /= by_;
  }
}

}  // namespace dgc::train
