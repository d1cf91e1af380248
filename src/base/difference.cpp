#include "base/difference.h"

#include <fmt/format.h>

#include <sstream>

namespace dgc {

std::string Difference::text() const {
  return fmt::format("has '{}' where rank 0 has '{}'", theirs, ours);
}

std::optional<Difference> first_difference(std::span<const std::string> texts) {
  for (std::size_t rank = 1; rank < texts.size(); ++rank) {
    if (texts[rank] == texts[0]) continue;
    std::istringstream first(texts[0]);
    std::istringstream other(texts[rank]);
    while (first || other) {
      std::string ours;
      std::string theirs;
      if (!std::getline(first, ours)) ours = "nothing more";
      if (!std::getline(other, theirs)) theirs = "nothing more";
      if (ours != theirs) return Difference{rank, theirs, ours};
    }
  }
  return std::nullopt;
}

}  // namespace dgc
