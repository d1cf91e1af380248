// Workers that are threads share what they read: 32 of them would unpack the same files 32 times.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>

#include "train/settings.h"

namespace dgc::train {

/// The shared pointer that `make` returns; the same for all that ask with the same settings while
/// anybody has it. May be called from several threads at once.
template <typename Make>
auto read_once(const Settings& settings, const Make& make) {
  using Pointer = decltype(make());
  static std::mutex mutex;
  static std::map<std::string, typename Pointer::weak_type> known;
  const std::scoped_lock lock(mutex);
  auto& place = known[to_json(settings).dump()];
  Pointer data = place.lock();
  if (!data) place = data = make();
  return data;
}

}  // namespace dgc::train
