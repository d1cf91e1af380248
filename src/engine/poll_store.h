// Waiting for a key without the store's own wait.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "dgc/engines.h"

namespace dgc::detail {

/// What RendezvousStore::get promises, by asking try_get() again and again.
inline std::optional<std::vector<std::byte>> poll_store(RendezvousStore& store,
                                                        const std::string& key,
                                                        std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  for (;;) {
    auto value = store.try_get(key);
    if (value || std::chrono::steady_clock::now() >= deadline) return value;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

}  // namespace dgc::detail
