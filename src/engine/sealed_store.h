// A store that strangers can write to, with values that they cannot make.
#pragma once

#include <memory>
#include <string>

#include "dgc/engines.h"

namespace dgc::detail {

/// Each value goes with a code of the key and the value. One whose code is wrong is not there. That
/// does not keep anybody from removing keys. Without a secret, `store` itself.
std::shared_ptr<RendezvousStore> seal_store(std::shared_ptr<RendezvousStore> store,
                                            std::string secret);

}  // namespace dgc::detail
