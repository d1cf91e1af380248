// "Did you mean": the names that one may have meant which was misspelt.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace dgc {

/// The choice with the least edit distance to `word`, the first of several; "" without choices, and
/// when none is near: a third of its letters at most are other ones, or one begins with the other.
/// Letters that changed places count once.
std::string nearest(std::string_view word, std::span<const std::string> choices);

/// "did you mean 'resnet50'? ", or "" when no choice is near.
std::string did_you_mean(std::string_view word, std::span<const std::string> choices);

}  // namespace dgc
