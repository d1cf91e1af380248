#include "train/skipped_files.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sstream>

#include "train/across_ranks.h"
#include "train/run_folder.h"

namespace dgc::train {

void SkippedFiles::add(Group& group, const std::vector<std::string>& mine, Console& console) {
  std::size_t count = 0;
  std::string first;
  for (const std::string& theirs : gathered(group, fmt::format("{}", fmt::join(mine, "\n")))) {
    std::istringstream lines(theirs);
    for (std::string line; std::getline(lines, line);) {
      line = valid_utf8(line);
      if (!all_.insert(line).second) continue;
      ++count;
      if (first.empty()) first = line;
    }
  }
  if (count == 1) {
    console.say("warning: a file could not be read and was skipped: " + first);
  } else if (count > 1) {
    console.say(fmt::format(
        "warning: {} files could not be read and were skipped. The first is: {}", count, first));
  }
}

}  // namespace dgc::train
