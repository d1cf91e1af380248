// Names of an enumeration's values, as users write them.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dgc/error.h"

namespace dgc {

/// By name_of(T), which is found beside T.
template <typename T>
std::vector<std::string> names_of(std::span<const T> choices) {
  std::vector<std::string> names;
  for (const T choice : choices) names.emplace_back(name_of(choice));
  return names;
}

/// Inverse of name_of. `what` is for the error, which lists the choices.
template <typename T>
T parse_choice(std::string_view what, std::string_view name, std::span<const T> choices) {
  for (const T choice : choices) {
    if (name == name_of(choice)) return choice;
  }
  throw Error(ErrorCode::invalid_argument, "parse", fmt::format("{} '{}'", what, name),
              "is unknown", fmt::format("use one of: {}", fmt::join(names_of(choices), ", ")));
}

}  // namespace dgc
