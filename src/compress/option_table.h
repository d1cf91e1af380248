// The options of compression and exchange, each once: its name, how its text is read and written,
// and whether all ranks have to have the same. Comparing ranks, the trainer's settings and Python
// go by this list, so that a new option is a member of its struct and a line here.
#pragma once

#include <charconv>
#include <functional>
#include <limits>
#include <type_traits>

#include "base/choice.h"
#include "dgc/compressor.h"

namespace dgc {

template <typename Options>
struct Option {
  std::string name;  ///< that of the member
  /// Throws Error(invalid_argument) naming the option, the text and what it may be.
  std::function<void(Options&, std::string_view text)> parse;
  std::function<std::string(const Options&)> print;
  std::vector<std::string> choices;  ///< of an enumeration or bool; else empty
  bool compared = true;              ///< has to be the same on all ranks
};

/// Of CompressOptions, in the order of its members. `schema` is not an option of users.
std::span<const Option<CompressOptions>> compress_options();

/// Takes the text for the option of that name; false where the list has none.
template <typename Options>
bool set_option(std::span<const Option<Options>> list, Options& options, std::string_view name,
                std::string_view text) {
  for (const Option<Options>& option : list) {
    if (option.name != name) continue;
    option.parse(options, text);
    return true;
  }
  return false;
}

/// What ranks compare: "name value", one to a line.
template <typename Options>
std::string compared_text(std::span<const Option<Options>> list, const Options& options) {
  std::string text;
  for (const Option<Options>& option : list) {
    if (option.compared) text += fmt::format("{} {}\n", option.name, option.print(options));
  }
  return text;
}

/// For the tables: an option of type bool, a number or a text.
template <typename Options, typename T>
Option<Options> plain_option(const char* name, T Options::*member, bool compared = true) {
  Option<Options> option{.name = name, .compared = compared};
  option.print = [member](const Options& o) { return fmt::format("{}", o.*member); };
  option.parse = [name, member](Options& o, std::string_view text) {
    const auto refuse = [&](const char* what) {
      throw Error(ErrorCode::invalid_argument, "options", name,
                  fmt::format("'{}' is not {}", text, what));
    };
    if constexpr (std::is_same_v<T, bool>) {
      if (text != "true" && text != "false") refuse("true or false");
      o.*member = text == "true";
    } else if constexpr (std::is_arithmetic_v<T>) {
      // As double first: 0.9 is then what it is in a program.
      std::conditional_t<std::is_floating_point_v<T>, double, T> value{};
      auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
      // Beyond the type: whoever checks the domain says what the domain is.
      if (error == std::errc::result_out_of_range) {
        value = text.starts_with('-') ? std::numeric_limits<decltype(value)>::lowest()
                                      : std::numeric_limits<decltype(value)>::max();
        error = {};
      }
      if (error != std::errc{} || end != text.data() + text.size()) {
        refuse(std::is_floating_point_v<T> ? "a number" : "a whole number");
      }
      o.*member = static_cast<T>(value);
    } else {
      o.*member = text;
    }
  };
  if constexpr (std::is_same_v<T, bool>) option.choices = {"false", "true"};
  return option;
}

/// One of an enumeration's values.
template <typename Options, typename T>
Option<Options> choice_option(const char* name, T Options::*member, std::span<const T> choices,
                              bool compared = true) {
  return {.name = name,
          .parse = [name, member, choices](
                       Options& o,
                       std::string_view text) { o.*member = parse_choice(name, text, choices); },
          .print = [member](const Options& o) { return std::string(name_of(o.*member)); },
          .choices = names_of(choices),
          .compared = compared};
}

}  // namespace dgc
