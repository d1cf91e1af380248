// What a run does where its settings say "auto": how momentum is corrected, how messages are
// exchanged, how much is sent, and whether there is a warm-up.
#pragma once

#include <cstdint>
#include <string>

#include "train/settings.h"

namespace dgc::train {

struct Chosen {
  Settings settings;  ///< nothing of these is "auto" any more, but the algorithm may choose by time
  std::string reason;  ///< empty where nothing was left to choose
};
/// For a run of `steps` steps on `workers` workers, of the modes of dgc::Sgd. The same on all
/// ranks.
Chosen with_defaults(Settings settings, int workers, std::uint64_t steps);

}  // namespace dgc::train
