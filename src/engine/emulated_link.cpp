// A group whose messages take as long as they would over a given link.
//
// All ranks are on one machine, so that their steady clocks are one. A message carries the time at
// which its first byte leaves. Its receiver computes from that when the last byte arrives, and
// waits until then. What the group below takes is hidden by that wait, as long as it is less.
//
//   leaves   a sender's link sends one message after the other: all its messages share its rate.
//   room     Gloo sends at once what the receiver has told it to have room for. Where the receiver
//            made room at time p only, the message leaves at p + delay at the earliest: the news
//            has to travel. swap() makes room ahead of time, exchange() when it is called.
//   arrives  one delay later, at the receiver's link, which takes one message after the other too:
//            at least its bytes over the rate.
//
// Deviations from a real network: the rate counts payload alone, without the headers of TCP and
// Ethernet. TCP's slow start is not there. A message that waits for room does not make the
// sender's following ones late.
#include "engine/emulated_link.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <fstream>
#include <thread>

#include "dgc/engines.h"
#include "engine/parcel.h"

namespace dgc {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

/// Before each message.
struct Stamp {
  std::int64_t leaves;    // first byte, in nanoseconds of the steady clock
  std::uint64_t machine;  // on which that clock is
};

std::int64_t nanoseconds(Clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

/// Another one after each start of the kernel, the same in all its containers and namespaces.
std::uint64_t this_machine() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return XXH64(id.data(), id.size(), 0);
}

class EmulatedLink final : public Group {
 public:
  EmulatedLink(std::unique_ptr<Group> inner, Link link)
      : Group(inner->rank(), inner->size(), inner->timeout()),
        inner_(std::move(inner)),
        link_(link),
        name_(fmt::format("{}, emulated link of {}", inner_->engine(), link_text(link))) {}

  std::string_view engine() const noexcept override { return name_; }
  std::string host() const override { return inner_->host(); }
  int world_rank(int r) const noexcept override { return inner_->world_rank(r); }

 protected:
  void do_exchange(std::span<const Outgoing> sends, std::span<const Incoming> receives,
                   Deadline deadline) override {
    const Clock::time_point now = Clock::now();
    std::vector<std::vector<std::byte>> stamped;
    for (const Outgoing& send : sends) stamped.push_back(with_stamp(send.bytes, now));
    std::vector<std::vector<std::byte>> rooms;
    for (const Incoming& receive : receives) {
      rooms.emplace_back(sizeof(Stamp) + receive.bytes.size());
    }
    std::vector<Outgoing> out;
    std::vector<Incoming> in;
    for (std::size_t i = 0; i < sends.size(); ++i) out.push_back({sends[i].peer, stamped[i]});
    for (std::size_t i = 0; i < receives.size(); ++i) in.push_back({receives[i].peer, rooms[i]});
    give_time(deadline);
    inner_->exchange(out, in);
    std::vector<Arrival> arrivals;
    for (std::size_t i = 0; i < receives.size(); ++i) {
      arrivals.push_back({receives[i].peer, stamp_of(receives[i].peer, rooms[i]), rooms[i].size()});
      std::copy(rooms[i].begin() + sizeof(Stamp), rooms[i].end(), receives[i].bytes.begin());
    }
    wait_for(arrivals, now, deadline);
  }

  int do_swap(std::span<const std::span<const std::byte>> outgoing, std::uint64_t bound,
              std::span<const std::uint64_t> next, std::span<Parcel> from,
              Deadline deadline) override {
    const Clock::time_point now = Clock::now();
    const Room room = rooms_.empty() ? Room{bound, now} : rooms_.front();
    if (!rooms_.empty()) rooms_.pop_front();
    if (room.bound >= bound) {
      swap_now(outgoing, bound, next, from, room.made, deadline);
      return 1;
    }
    // As Gloo does: lengths alone fit into the room there is, and contents follow.
    std::vector<ParcelHeader> lengths;
    std::vector<std::span<const std::byte>> spans;
    for (const auto& bytes : outgoing) lengths.push_back(bytes.size());
    for (const ParcelHeader& length : lengths)
      spans.push_back(std::as_bytes(std::span(&length, 1)));
    std::vector<Parcel> theirs(from.size());
    swap_now(spans, sizeof(ParcelHeader), next, theirs, room.made, deadline);
    std::vector<Outgoing> sends;
    std::vector<Incoming> receives;
    for (int peer = 0; peer < size(); ++peer) {
      const auto at = static_cast<std::size_t>(peer);
      if (peer == rank()) continue;
      ParcelHeader length = 0;
      if (theirs[at].bytes.size() == sizeof length) {
        std::memcpy(&length, theirs[at].bytes.data(), sizeof length);
      }
      check_parcel(world_rank(peer), length, bound);
      const auto memory = std::make_shared_for_overwrite<std::byte[]>(length);
      from[at] = {{memory.get(), length}, memory};
      if (!outgoing[at].empty()) sends.push_back({peer, outgoing[at]});
      if (length > 0) receives.push_back({peer, {memory.get(), length}});
    }
    do_exchange(sends, receives, deadline);
    return 2;
  }

  void announce(const Error& cause) noexcept override { inner_->fail(cause); }

 private:
  /// Made for one swap() to come.
  struct Room {
    std::uint64_t bound;
    Clock::time_point made;
  };
  struct Arrival {
    int peer;
    Clock::time_point leaves;
    std::size_t bytes;  // with the stamp
  };

  void swap_now(std::span<const std::span<const std::byte>> outgoing, std::uint64_t bound,
                std::span<const std::uint64_t> next, std::span<Parcel> from,
                Clock::time_point room_made, Deadline deadline) {
    const Clock::time_point now = Clock::now();
    std::vector<std::vector<std::byte>> stamped(from.size());
    // Everybody begins with the rank after its own, so that not all begin with the same.
    for (int i = 1; i < size(); ++i) {
      const auto peer = static_cast<std::size_t>((rank() + i) % size());
      stamped[peer] = with_stamp(outgoing[peer], now);
    }
    std::vector<std::uint64_t> bounds;
    for (const std::uint64_t b : next) bounds.push_back(b + sizeof(Stamp));
    const std::vector<std::span<const std::byte>> spans(stamped.begin(), stamped.end());
    give_time(deadline);
    const std::vector<Parcel> all = inner_->swap(spans, bound + sizeof(Stamp), bounds);
    std::vector<Arrival> arrivals;
    for (int peer = 0; peer < size(); ++peer) {
      const auto at = static_cast<std::size_t>(peer);
      if (peer == rank()) continue;
      arrivals.push_back({peer, stamp_of(peer, all[at].bytes), all[at].bytes.size()});
      from[at] = {all[at].bytes.subspan(sizeof(Stamp)), all[at].memory};
    }
    wait_for(arrivals, room_made, deadline);
    while (rooms_.size() < next.size()) rooms_.push_back({next[rooms_.size()], Clock::now()});
  }

  std::vector<std::byte> with_stamp(std::span<const std::byte> bytes, Clock::time_point now) {
    const Stamp stamp{nanoseconds(times_.send(now, bytes.size())), machine_};
    std::vector<std::byte> stamped(sizeof stamp + bytes.size());
    std::memcpy(stamped.data(), &stamp, sizeof stamp);
    std::copy(bytes.begin(), bytes.end(), stamped.begin() + sizeof stamp);
    return stamped;
  }

  Clock::time_point stamp_of(int peer, std::span<const std::byte> stamped) const {
    Stamp stamp{};
    const std::string subject = fmt::format("rank {}", world_rank(peer));
    if (stamped.size() < sizeof stamp) {
      throw Error(ErrorCode::bad_length, "emulated link", subject, "sent a message without a time",
                  "give all ranks the same emulated link");
    }
    std::memcpy(&stamp, stamped.data(), sizeof stamp);
    if (stamp.machine != machine_) {
      throw Error(ErrorCode::configuration_mismatch, "emulated link", subject,
                  "is on another machine, or emulates no link",
                  "a link can be emulated between workers of one machine, all with the same");
    }
    return Clock::time_point(std::chrono::nanoseconds(stamp.leaves));
  }

  /// The group below has what is left of this call's time.
  void give_time(Deadline deadline) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    inner_->set_timeout(std::max(left, std::chrono::milliseconds(1)));
  }

  /// Until all have arrived, and all of this rank's own have left.
  void wait_for(std::vector<Arrival>& arrivals, Clock::time_point room_made, Deadline deadline) {
    std::sort(arrivals.begin(), arrivals.end(),
              [](const Arrival& a, const Arrival& b) { return a.leaves < b.leaves; });
    int last = -1;
    Clock::time_point done = times_.sent();
    for (const Arrival& one : arrivals) {
      const auto here = times_.receive(one.leaves, room_made, one.bytes - sizeof(Stamp));
      done = std::max(done, here);
      last = one.peer;
    }
    std::this_thread::sleep_until(std::min(done, deadline));
    if (done <= deadline) return;
    throw Error(ErrorCode::timeout, "receive",
                last < 0 ? name_ : fmt::format("rank {}", world_rank(last)),
                fmt::format("{} take {:.3g} s more than the {} ms allowed over the emulated {}",
                            last < 0 ? "messages" : "its message and those before it",
                            Seconds(done - deadline).count(), timeout().count(), link_text(link_)),
                "set a longer timeout, or emulate a faster link");
  }

  std::unique_ptr<Group> inner_;
  Link link_;
  std::string name_;
  std::uint64_t machine_ = this_machine();
  LinkTimes times_{link_};
  std::deque<Room> rooms_;  // for the next swaps, as Gloo has them
};

/// A rate that is hardly one makes no clock overflow: a deadline comes long before.
Clock::duration ticks(Seconds seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::min(seconds, Seconds(1e9)));
}

Seconds on_the_way(std::size_t bytes, const Link& link) {
  return Seconds(static_cast<double>(bytes) / link.bytes_per_second);
}

}  // namespace

LinkTimes::Time LinkTimes::send(Time now, std::size_t bytes) {
  const Time leaves = std::max(now, sent_);
  sent_ = leaves + ticks(on_the_way(bytes, link_));
  return leaves;
}

LinkTimes::Time LinkTimes::receive(Time leaves, Time room_made, std::size_t bytes) {
  const auto delay = ticks(link_.delay);
  const Time there = std::max(leaves, room_made + delay) + delay;
  received_ = std::max(there, received_) + ticks(on_the_way(bytes, link_));
  return received_;
}

std::unique_ptr<Group> make_emulated_link(std::unique_ptr<Group> group, const Link& link) {
  const auto refuse = [&](const char* what) {
    throw Error(ErrorCode::invalid_argument, "emulated link", what, "is not possible",
                "as 100Mbps,25ms");
  };
  if (!(link.bytes_per_second > 0.0)) refuse("this bandwidth");
  if (!(link.delay.count() >= 0.0) || !std::isfinite(link.delay.count())) refuse("this delay");
  return std::make_unique<EmulatedLink>(std::move(group), link);
}

}  // namespace dgc
