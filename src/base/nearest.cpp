#include "base/nearest.h"

#include <algorithm>
#include <vector>

namespace dgc {
namespace {

/// Letters to insert, drop, replace, or swap with the next.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> cost(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) {
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        cost[i][j] = i + j;
        continue;
      }
      cost[i][j] = std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1,
                             cost[i - 1][j - 1] + (a[i - 1] != b[j - 1] ? 1 : 0)});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
    }
  }
  return cost[a.size()][b.size()];
}

bool near(std::string_view word, std::string_view choice) {
  if (word.size() > 1 && (choice.starts_with(word) || word.starts_with(choice))) return true;
  const std::size_t most = std::max(word.size(), choice.size()) / 3;
  return edit_distance(word, choice) <= std::max<std::size_t>(1, most);
}

}  // namespace

std::string nearest(std::string_view word, std::span<const std::string> choices) {
  const auto found = std::min_element(choices.begin(), choices.end(), [&](auto& a, auto& b) {
    return edit_distance(word, a) < edit_distance(word, b);
  });
  return found == choices.end() || !near(word, *found) ? std::string() : *found;
}

std::string did_you_mean(std::string_view word, std::span<const std::string> choices) {
  const std::string meant = nearest(word, choices);
  return meant.empty() ? meant : "did you mean '" + meant + "'? ";
}

}  // namespace dgc
