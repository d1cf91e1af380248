#include "hub/leases.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "dgc/error.h"

namespace dgc::hub {

Lease Leases::take(const std::string& member, std::uint64_t sequence, std::int64_t count) {
  if (const auto mine = held_.find(member); mine != held_.end()) {
    for (const Lease& lease : mine->second) {
      if (lease.sequence == sequence) return lease;
    }
  }
  Lease lease{.sequence = sequence};
  if (!returned_.empty()) {
    Lease& old = returned_.front();
    lease.epoch = old.epoch;
    lease.first = old.first;
    lease.count = std::min(count, old.count);
    old.first += lease.count;
    old.count -= lease.count;
    if (old.count == 0) returned_.pop_front();
  } else if (next_ < total_) {
    lease.epoch = static_cast<std::uint64_t>(next_ / positions_);
    lease.first = next_ % positions_;
    lease.count = std::min({count, positions_ - lease.first, total_ - next_});
    next_ += lease.count;
  }
  if (lease.count > 0) held_[member].push_back(lease);
  return lease;
}

bool Leases::has(const std::string& member, std::uint64_t sequence) const {
  const auto mine = held_.find(member);
  return mine != held_.end() &&
         std::any_of(mine->second.begin(), mine->second.end(),
                     [&](const Lease& lease) { return lease.sequence == sequence; });
}

void Leases::saved(const std::string& member, std::uint64_t sequence) {
  const auto mine = held_.find(member);
  if (mine == held_.end()) return;
  std::erase_if(mine->second, [&](const Lease& lease) {
    if (lease.sequence > sequence) return false;
    done_ += lease.count;
    return true;
  });
  if (mine->second.empty()) held_.erase(mine);
}

void Leases::release(const std::string& member) {
  const auto mine = held_.find(member);
  if (mine == held_.end()) return;
  for (const Lease& lease : mine->second) returned_.push_back(lease);
  held_.erase(mine);
}

void Leases::release_after(const std::string& member, std::uint64_t sequence) {
  saved(member, sequence);
  release(member);
}

std::int64_t Leases::taken() const noexcept {
  std::int64_t back = 0;
  for (const Lease& lease : returned_) back += lease.count;
  return next_ - back;
}

std::size_t Leases::messages_of(const std::string& member) const {
  const auto mine = held_.find(member);
  return mine == held_.end() ? 0 : mine->second.size();
}

std::int64_t Leases::held_by(const std::string& member) const {
  const auto mine = held_.find(member);
  std::int64_t sum = 0;
  if (mine != held_.end()) {
    for (const Lease& lease : mine->second) sum += lease.count;
  }
  return sum;
}

nlohmann::json Leases::to_json() const {
  const auto one = [](const Lease& lease) {
    return nlohmann::json{lease.sequence, lease.epoch, lease.first, lease.count};
  };
  nlohmann::json returned = nlohmann::json::array();
  for (const Lease& lease : returned_) returned.push_back(one(lease));
  nlohmann::json held = nlohmann::json::object();
  for (const auto& [member, leases] : held_) {
    held[member] = nlohmann::json::array();
    for (const Lease& lease : leases) held[member].push_back(one(lease));
  }
  return {{"positions", positions_}, {"total", total_},      {"next", next_},
          {"done", done_},           {"returned", returned}, {"held", held}};
}

Leases Leases::from(const nlohmann::json& json) {
  try {
    const auto one = [](const nlohmann::json& entry) {
      return Lease{.sequence = entry.at(0).get<std::uint64_t>(),
                   .epoch = entry.at(1).get<std::uint64_t>(),
                   .first = entry.at(2).get<std::int64_t>(),
                   .count = entry.at(3).get<std::int64_t>()};
    };
    Leases leases(json.at("positions").get<std::int64_t>(), json.at("total").get<std::int64_t>());
    leases.next_ = json.at("next").get<std::int64_t>();
    leases.done_ = json.at("done").get<std::int64_t>();
    for (const auto& entry : json.at("returned")) leases.returned_.push_back(one(entry));
    for (const auto& [member, list] : json.at("held").items()) {
      for (const auto& entry : list) leases.held_[member].push_back(one(entry));
    }
    return leases;
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorCode::bad_state, "hub", "leases", error.what());
  }
}

}  // namespace dgc::hub
