#include "base/nearest.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace dgc {
namespace {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0]++;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replace = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({replace, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

}  // namespace

std::string nearest(std::string_view word, std::span<const std::string> choices) {
  const auto found = std::min_element(choices.begin(), choices.end(), [&](auto& a, auto& b) {
    return edit_distance(word, a) < edit_distance(word, b);
  });
  return found == choices.end() ? std::string() : *found;
}

}  // namespace dgc
