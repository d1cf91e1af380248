// When messages leave and arrive over a link: arithmetic on times that are given.
#pragma once

#include <chrono>
#include <cstddef>

#include "dgc/link.h"

namespace dgc {

/// One rank's end of an emulated link. All its messages queue, those that leave and those that
/// come each in a queue of their own.
class LinkTimes {
 public:
  using Time = std::chrono::steady_clock::time_point;

  explicit LinkTimes(const Link& link) : link_(link) {}

  /// Queues a message that is ready at `now`. Returns when its first byte leaves.
  Time send(Time now, std::size_t bytes);
  /// When everything that was queued has left.
  Time sent() const noexcept { return sent_; }

  /// Takes in a message whose sender's link had it `leaves`, into room that was made at
  /// `room_made`: that news has to reach the sender first. Returns when its last byte is here. Give
  /// messages in the order in which they leave.
  Time receive(Time leaves, Time room_made, std::size_t bytes);

 private:
  Link link_;
  Time sent_{};
  Time received_{};
};

}  // namespace dgc
