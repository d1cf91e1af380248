// Files of the data that could not be read and were left out, on any rank.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "dgc/group.h"
#include "train/console.h"

namespace dgc::train {

class SkippedFiles {
 public:
  /// Adds what each rank has met since the last call, and says on the console which are new:
  /// loaders run ahead, and the same file comes again in each epoch. A collective call.
  void add(Group& group, const std::vector<std::string>& mine, Console& console);

  const std::set<std::string>& all() const noexcept { return all_; }
  void set(std::set<std::string> all) { all_ = std::move(all); }

 private:
  std::set<std::string> all_;
};

}  // namespace dgc::train
