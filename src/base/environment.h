// Environment variables that launchers set.
#pragma once

#include <limits>
#include <optional>
#include <string>

namespace dgc {

/// "" counts as unset, as in most launchers.
std::optional<std::string> variable(const char* name);

/// A whole number from 0 to `most`. Throws Error(invalid_argument) naming the variable, with
/// `hint`, where it is not set or something else.
int number_in(const char* name, const std::string& operation, const std::string& hint,
              int most = std::numeric_limits<int>::max());

}  // namespace dgc
