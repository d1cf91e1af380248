// What ranks that should have the same say about themselves, compared line by line.
#pragma once

#include <optional>
#include <span>
#include <string>

namespace dgc {

struct Difference {
  std::size_t rank;
  std::string theirs;  ///< the first line that differs
  std::string ours;    ///< rank 0's
  /// "has 'x' where rank 0 has 'y'"
  std::string text() const;
};

/// The first line of the lowest rank whose text is not that of rank 0: the same on every rank that
/// has the texts of all. A text that ends earlier has the line "nothing more".
std::optional<Difference> first_difference(std::span<const std::string> texts);

}  // namespace dgc
