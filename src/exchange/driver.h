// One thread with a queue: buckets are exchanged in the order they were given, as on all ranks.
#pragma once

#include <functional>
#include <future>
#include <memory>

#include "exchange/context.h"

namespace dgc::exchange {

/// Destruction waits for what was given.
class Driver {
 public:
  Driver();
  ~Driver();
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  std::future<Contents> submit(std::function<Contents()> work);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dgc::exchange
