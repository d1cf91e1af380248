// "Did you mean": the nearest of some names to one that was misspelt.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace dgc {

/// The choice with the least edit distance to `word`, the first of several; "" without choices.
std::string nearest(std::string_view word, std::span<const std::string> choices);

}  // namespace dgc
