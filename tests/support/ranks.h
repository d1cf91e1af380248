// Ranks as threads of the test.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "dgc/group.h"

namespace dgc::test {

/// Runs `work` on one thread per rank of a local group and returns the Error that each threw, if
/// any. A rank's group ends with its thread. Anything but an Error is rethrown.
std::vector<std::optional<Error>> run_ranks(int size, std::chrono::milliseconds timeout,
                                            const std::function<void(Group&)>& work);

}  // namespace dgc::test
