#include "base/environment.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>

#include "dgc/error.h"

namespace dgc {

std::optional<std::string> variable(const char* name) {
  const char* const value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

int number_in(const char* name, const std::string& operation, const std::string& hint, int most) {
  const std::optional<std::string> text = variable(name);
  if (!text) throw Error(ErrorCode::invalid_argument, operation, name, "is not set", hint);
  int value = 0;
  const char* const end = text->data() + text->size();
  const auto [stop, error] = std::from_chars(text->data(), end, value);
  if (error != std::errc{} || stop != end || value < 0 || value > most) {
    throw Error(ErrorCode::invalid_argument, operation, name,
                fmt::format("'{}' is not a whole number from 0 to {}", *text, most), hint);
  }
  return value;
}

}  // namespace dgc
