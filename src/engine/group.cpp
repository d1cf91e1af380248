// What all engines share: arguments checked, one thread at a time, traffic counted, the first
// failure kept. And subgroups, which are a view of their parent.
#include "dgc/group.h"

#include <fmt/format.h>

#include <algorithm>

#include "dgc/collectives.h"
#include "engine/ended.h"
#include "engine/parcel.h"

namespace dgc {

Error ended_earlier(const Error& cause) {
  static constexpr std::string_view kEarlier = "the group ended earlier: ";
  // A subgroup has this from its parent already.
  if (cause.problem().starts_with(kEarlier)) return cause;
  const std::string subject = cause.subject().empty() ? "" : cause.subject() + ": ";
  const std::string hint = cause.hint().empty() ? "" : cause.hint() + "; then ";
  return Error(cause.code(), "exchange", cause.subject(),
               fmt::format("{}{}: {}{}", kEarlier, cause.operation(), subject, cause.problem()),
               hint + "make a new group");
}

Parcel Parcel::copy_of(std::span<const std::byte> bytes) {
  auto memory = std::make_shared_for_overwrite<std::byte[]>(bytes.size());
  std::copy(bytes.begin(), bytes.end(), memory.get());
  const std::span<const std::byte> copied{memory.get(), bytes.size()};
  return {copied, std::move(memory)};
}

Parcel owning(std::vector<std::byte> bytes) {
  const auto held = std::make_shared<std::vector<std::byte>>(std::move(bytes));
  return {*held, {held, held->data()}};
}

template <typename Work>
void Group::alone(Work&& work) {
  // Messages of two threads would take each other's places.
  if (busy_.exchange(true)) {
    throw Error(ErrorCode::wrong_order, "exchange", fmt::format("rank {}", rank_),
                "two threads use one group at the same time",
                "give each its own group; between backward() and step() it is the optimizer's");
  }
  try {
    work();
  } catch (const std::exception& error) {
    busy_ = false;
    fail(as_error(error));
    throw;
  }
  busy_ = false;
}

void Group::exchange(std::span<const Outgoing> sends, std::span<const Incoming> receives) {
  if (failure_) throw ended_earlier(*failure_);
  const auto check = [this](int peer) {
    if (peer >= 0 && peer < size_ && peer != rank_) return;
    throw Error(ErrorCode::invalid_argument, "exchange", fmt::format("peer {}", peer),
                fmt::format("this is rank {} of {}", rank_, size_));
  };
  std::vector<Outgoing> out;
  std::vector<Incoming> in;
  for (const Outgoing& send : sends) {
    check(send.peer);
    if (!send.bytes.empty()) out.push_back(send);
  }
  for (const Incoming& receive : receives) {
    check(receive.peer);
    if (!receive.bytes.empty()) in.push_back(receive);
  }
  if (out.empty() && in.empty()) return;
  alone([&] { do_exchange(out, in, std::chrono::steady_clock::now() + timeout_); });
  for (const Outgoing& send : out) traffic_.bytes_sent += send.bytes.size();
  for (const Incoming& receive : in) traffic_.bytes_received += receive.bytes.size();
  traffic_.messages_sent += out.size();
}

std::vector<Parcel> Group::swap(std::span<const std::span<const std::byte>> outgoing,
                                std::uint64_t bound, std::span<const std::uint64_t> next) {
  if (failure_) throw ended_earlier(*failure_);
  const auto ranks = static_cast<std::size_t>(size_);
  const auto me = static_cast<std::size_t>(rank_);
  if (outgoing.size() != ranks) {
    throw Error(ErrorCode::invalid_argument, "swap", fmt::format("{} messages", outgoing.size()),
                fmt::format("for {} ranks", ranks));
  }
  for (std::size_t r = 0; r < ranks; ++r) {
    if (outgoing[r].size() <= bound) continue;
    throw Error(ErrorCode::limit_exceeded, "swap", fmt::format("rank {}", world_rank(rank_)),
                fmt::format("gives {} bytes, the bound is {}", outgoing[r].size(), bound));
  }
  // Room is made in the order of the calls: none behind one that gets none.
  const auto too_large =
      std::find_if_not(next.begin(), next.end(), [&](std::uint64_t b) { return has_room(b); });
  const auto fitting = static_cast<std::size_t>(too_large - next.begin());
  next = next.first(std::min(kParcelsAhead, fitting));
  std::vector<Parcel> from(ranks);
  if (size_ > 1) {
    int messages = 0;
    if (has_room(bound)) {
      alone([&] {
        messages =
            do_swap(outgoing, bound, next, from, std::chrono::steady_clock::now() + timeout_);
      });
    }
    if (messages == 0) {
      auto all = all_to_all(*this, outgoing, bound);
      for (std::size_t r = 0; r < ranks; ++r) from[r] = owning(std::move(all[r]));
      return from;
    }
    for (std::size_t r = 0; r < ranks; ++r) {
      if (r == me) continue;
      traffic_.messages_sent += static_cast<std::uint64_t>(messages);
      traffic_.bytes_sent += outgoing[r].size() + sizeof(ParcelHeader);
      traffic_.bytes_received += from[r].bytes.size() + sizeof(ParcelHeader);
    }
  }
  from[me] = Parcel::copy_of(outgoing[me]);
  return from;
}

std::vector<Parcel> Group::swap(std::span<const std::byte> mine, std::uint64_t bound,
                                std::span<const std::uint64_t> next) {
  const std::vector<std::span<const std::byte>> same(static_cast<std::size_t>(size_), mine);
  return swap(same, bound, next);
}

void Group::fail(const Error& cause) noexcept {
  if (failure_) return;
  failure_ = cause;
  // A cause that came from another rank is known to all already.
  if (cause.code() != ErrorCode::peer_failed) announce(cause);
}

namespace {

class Subgroup final : public Group {
 public:
  Subgroup(Group& parent, std::vector<int> members, int rank)
      : Group(rank, static_cast<int>(members.size()), parent.timeout()),
        parent_(parent),
        members_(std::move(members)) {}

  std::string_view engine() const noexcept override { return parent_.engine(); }
  std::string host() const override { return parent_.host(); }
  int world_rank(int r) const noexcept override {
    return parent_.world_rank(members_[static_cast<std::size_t>(r)]);
  }

 protected:
  void do_exchange(std::span<const Outgoing> sends, std::span<const Incoming> receives,
                   Deadline) override {
    std::vector<Outgoing> out(sends.begin(), sends.end());
    std::vector<Incoming> in(receives.begin(), receives.end());
    for (Outgoing& send : out) send.peer = members_[static_cast<std::size_t>(send.peer)];
    for (Incoming& receive : in) receive.peer = members_[static_cast<std::size_t>(receive.peer)];
    parent_.exchange(out, in);
  }
  void announce(const Error& cause) noexcept override { parent_.fail(cause); }

 private:
  Group& parent_;
  std::vector<int> members_;
};

}  // namespace

std::unique_ptr<Group> make_subgroup(Group& parent, std::vector<int> members) {
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (members[i] == parent.rank()) {
      return std::make_unique<Subgroup>(parent, std::move(members), static_cast<int>(i));
    }
  }
  throw Error(ErrorCode::invalid_argument, "subgroup", fmt::format("rank {}", parent.rank()),
              "is not one of the members");
}

}  // namespace dgc
